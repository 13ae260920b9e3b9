// Command controlplane holds the programs of a Kubernetes control plane, its store, kubectl and helm in one binary, so
// that what they share is compiled and linked once. The first argument says which of them it is.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	helm "helm.sh/helm/v4/pkg/cmd"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(refuse("none is named"))
	}
	os.Args = os.Args[1:]
	os.Exit(run(os.Args[0]))
}

func run(program string) int {
	switch program {
	case "etcd":
		etcdmain.Main(os.Args)
		return 0
	case "kube-apiserver":
		return cli.Run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		return cli.Run(controllers.NewControllerManagerCommand())
	case "kube-scheduler":
		return cli.Run(scheduler.NewSchedulerCommand())
	case "kubectl":
		return cli.Run(kubectl.NewDefaultKubectlCommand())
	case "helm":
		return runHelm()
	}
	return refuse(fmt.Sprintf("%q is not one of them", program))
}

func runHelm() int {
	var command *cobra.Command
	command, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		return 1
	}
	err = command.Execute()
	var failure helm.CommandError
	if errors.As(err, &failure) {
		return failure.ExitCode
	}
	if err != nil {
		return 1
	}
	return 0
}

func refuse(problem string) int {
	const programs = "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, helm"
	fmt.Fprintf(os.Stderr, "controlplane: the first argument names the program to be (%s): %s\n", programs, problem)
	return 2
}
