// What users of Google's Go client do, a line for each answer: google_client ROOT MODEL_DIR.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/api/googleapi"
	"google.golang.org/api/ml/v1"
	"google.golang.org/api/option"
)

const parent, name = "projects/golang", "projects/golang/models/m"

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	service, err := ml.NewService(context.Background(),
		option.WithEndpoint(os.Args[1]+"/"), option.WithoutAuthentication())
	check(err)
	models := service.Projects.Models
	_, err = models.Create(parent, &ml.GoogleCloudMlV1__Model{Name: "m", Description: "made"}).Do()
	check(err)
	operation, err := models.Versions.Create(name, &ml.GoogleCloudMlV1__Version{Name: "v",
		DeploymentUri: os.Args[2], Framework: "SCIKIT_LEARN", RuntimeVersion: "2.11"}).Do()
	check(err)
	for !operation.Done {
		time.Sleep(100 * time.Millisecond)
		operation, err = service.Projects.Operations.Get(operation.Name).Do()
		check(err)
	}
	fmt.Println("failed", operation.Error != nil)
	_, err = models.Patch(name, &ml.GoogleCloudMlV1__Model{Description: "changed"}).UpdateMask("description").Do()
	check(err)
	model, err := models.Get(name).Fields("description").Do()
	check(err)
	fmt.Println("description", model.Description, model.Name)
	filter := "name:m"
	for number := 0; number < 50; number++ {
		filter += fmt.Sprintf(" OR name:%s%d", strings.Repeat("absent", 10), number)
	}
	list, err := models.List(parent).Filter(filter).Do()
	check(err)
	fmt.Println("listed", len(list.Models))
	policy, err := models.GetIamPolicy(name).Do()
	check(err)
	_, err = models.SetIamPolicy(name, &ml.GoogleIamV1__SetIamPolicyRequest{Policy: policy}).Do()
	check(err)
	_, err = service.Projects.Explain(name, &ml.GoogleCloudMlV1__ExplainRequest{}).Do()
	if found, ok := err.(*googleapi.Error); ok {
		fmt.Println("not offered", found.Code)
	}
}
