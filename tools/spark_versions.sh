#!/usr/bin/env bash
# Runs the tests of the Spark source and sink with other versions of Spark: each in a virtual environment of its
# own, build/spark-VERSION, which takes all but PySpark from .venv. With Spark 4.1, pipelines write Delta Lake, too,
# which is not there for newer versions.
#
# usage: tools/spark_versions.sh VERSION...
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tests=(tests/spark/test_{read,stream,sink,load,typed,plan,progress,delta}.py)
delta=4.3.1
for version in "$@"; do
    venv=build/spark-$version
    if [ ! -e "$venv/.done" ]; then
        echo "spark-versions: installing PySpark $version in $venv (450 MB: one to three minutes)"
        .venv/bin/python -m venv --clear "$venv"
        "$venv/bin/python" -m pip install -q "pyspark==$version"
        packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        printf '%s\n' "$("$root/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
            "$root/python" "$root/spark" >"$packages/logcore.pth"
        if [[ $version == 4.1.* ]]; then
            # Without its dependencies: it asks for PySpark up to 4.1.1.
            "$venv/bin/python" -m pip install -q --no-deps "delta-spark==$delta" importlib_metadata zipp
            mvn -q -B -f tests/compat/delta/pom.xml dependency:copy-dependencies \
                -DincludeGroupIds=io.delta,io.unitycatalog -DoutputDirectory="$root/build/peers/delta-$delta"
        fi
        touch "$venv/.done"
    fi
    echo "spark-versions: testing with PySpark $version"
    # PySpark 4.1 leaves sockets to the garbage collector.
    "$venv/bin/python" -m pytest -q -W ignore::pytest.PytestUnraisableExceptionWarning "${tests[@]}"
done
