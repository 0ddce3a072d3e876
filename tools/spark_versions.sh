#!/usr/bin/env bash
# Runs the tests of the Spark source and sink with other versions of Spark: each in a virtual environment of its
# own, build/spark-VERSION, which takes all but PySpark from .venv.
#
# usage: tools/spark_versions.sh VERSION...
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tests=(tests/spark/test_{read,stream,sink,load,typed,plan,progress}.py)
for version in "$@"; do
    venv=build/spark-$version
    if [ ! -e "$venv/.done" ]; then
        echo "spark-versions: installing PySpark $version in $venv (450 MB: one to three minutes)"
        .venv/bin/python -m venv --clear "$venv"
        "$venv/bin/python" -m pip install -q "pyspark==$version"
        packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        printf '%s\n' "$("$root/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
            "$root/python" "$root/spark" >"$packages/logcore.pth"
        touch "$venv/.done"
    fi
    echo "spark-versions: testing with PySpark $version"
    # PySpark 4.1 leaves sockets to the garbage collector.
    "$venv/bin/python" -m pytest -q -W ignore::pytest.PytestUnraisableExceptionWarning "${tests[@]}"
done
