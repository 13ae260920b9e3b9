#!/bin/sh
# Puts Flink, Spark, Prism and Beam's job servers into the folder $1 (1.6 GB), and writes there the variables that
# test_clusters.py needs: . FOLDER/variables. Needs Java 17, Maven, Go and Python. What is there already is kept.
set -eu
FLINK=1.19.3
OTHER_FLINK=1.20.5
SPARK=3.5.5
OTHER_SPARK=3.5.0
PRISM=2.77.0

job_servers=$(cd "$(dirname "$0")" && pwd)/job_servers
mkdir -p "$1"
cd "$1"

# A distribution each, in the source archive of a Python package.
fetch_engine() {
    [ -d "$1" ] && return
    [ -d pip ] || python3 -m venv pip
    # What pip needs to read the archive's name and version.
    pip/bin/pip install --quiet --disable-pip-version-check wheel 'setuptools<70'
    pip/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
        --dest archives "$2==$3"
    tar -xzf archives/*.tar.gz
    rm -r archives
}

# $1: the file it becomes, $2: the engine, $3: the version of Spark.
build_job_server() {
    [ -f "$1" ] && return
    mkdir -p "build-$1"
    cp "$job_servers/pom.xml" "build-$1/"
    mvn --quiet --batch-mode --file "build-$1/pom.xml" -P "$2" "-Dspark=$3" package
    mv "build-$1/target/job-server-1.jar" "$1"
    rm -r "build-$1"
}

fetch_engine "apache-flink-libraries-$FLINK" apache-flink-libraries "$FLINK"
fetch_engine "apache_flink_libraries-$OTHER_FLINK" apache-flink-libraries "$OTHER_FLINK"
fetch_engine "pyspark-$SPARK" pyspark "$SPARK"
rm -rf pip
build_job_server job-server-flink.jar flink "$SPARK"
build_job_server job-server-spark.jar spark "$SPARK"
build_job_server job-server-other-spark.jar spark "$OTHER_SPARK"
[ -x prism ] || GOBIN=$PWD go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$PRISM"

cat > variables <<END
export TESTS_FLINK=$PWD/apache-flink-libraries-$FLINK/deps/lib
export TESTS_OTHER_FLINK=$PWD/apache_flink_libraries-$OTHER_FLINK/deps/lib
export TESTS_FLINK_JOB_SERVER=$PWD/job-server-flink.jar
export TESTS_SPARK=$PWD/pyspark-$SPARK/deps
export TESTS_SPARK_JOB_SERVER=$PWD/job-server-spark.jar
export TESTS_SPARK_OTHER_JOB_SERVER=$PWD/job-server-other-spark.jar
export TESTS_PRISM=$PWD/prism
END
