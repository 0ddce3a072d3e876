#!/usr/bin/env bash
# Checks for what the build needs: Python 3.11+, a Rust toolchain and, when asked for, Java and Go. Installs what is
# missing where the user may (root, with apt-get); elsewhere says which command to run. usage: toolchain.sh [java] [javac] [maven] [go]
set -uo pipefail
missing=0

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# need WHAT COMMAND DEBIAN_PACKAGE
need() {
    command -v "$2" >/dev/null && return
    if may_install; then
        echo "toolchain: $1 is missing; installing Debian's package $3"
        if (apt-get update && apt-get install -y --no-install-recommends "$3") >/dev/null 2>&1 && command -v "$2" >/dev/null; then
            return
        fi
    fi
    echo "toolchain: $1 is missing. Run: sudo apt-get install $3    (or your system's own way to install it)" >&2
    missing=1
}

python=${PYTHON:-python3}
need "a C compiler" cc gcc
need "Python" "$python" python3
if command -v "$python" >/dev/null; then
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "toolchain: $("$python" --version) is too old, 3.11 or newer is needed. Run: make PYTHON=/path/to/python3.11 …" >&2
        missing=1
    elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        may_install && apt-get install -y --no-install-recommends python3-venv >/dev/null 2>&1
        if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
            echo "toolchain: Python's venv module is missing. Run: sudo apt-get install python3-venv" >&2
            missing=1
        fi
    fi
fi

# Rust comes by rustup: Debian's where there is one and the user is root, else its own installer, which needs no root and
# writes to ~/.cargo and ~/.rustup only.
get_rustup() {
    if may_install && apt-get install -y --no-install-recommends rustup >/dev/null 2>&1; then
        return 0
    fi
    command -v curl >/dev/null || return 1
    echo "toolchain: Rust is missing; installing it for this user with rustup's own installer (https://rustup.rs)"
    curl --proto '=https' --tlsv1.2 --connect-timeout 20 -sSf https://sh.rustup.rs |
        sh -s -- -y -q --profile minimal --default-toolchain none --no-modify-path
}

toolchain=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$(dirname "$0")/../rust-toolchain.toml")
export PATH="$PATH:$HOME/.cargo/bin"
if ! command -v cargo >/dev/null && ! command -v rustup >/dev/null && ! get_rustup; then
    echo "toolchain: Rust's cargo is missing. Run: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh    (or: sudo apt-get install rustup)" >&2
    missing=1
elif ! cargo --version >/dev/null 2>&1; then
    echo "toolchain: the Rust toolchain that rust-toolchain.toml names is not installed; asking rustup for it"
    if ! rustup toolchain install "$toolchain" --profile minimal --component rustfmt --component clippy; then
        echo "toolchain: rustup could not install it. Run: rustup toolchain install $toolchain" >&2
        missing=1
    fi
fi

for extra in "$@"; do
    case $extra in
        java)
            need "a Java runtime (for Spark and Apache Kafka's own tools)" java openjdk-17-jre-headless
            # "17.0.12", and "1.8.0_412" before 9.
            major=$(java -version 2>&1 | sed -n '1s/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p')
            if [ -n "$major" ] && [ "$major" -lt 17 ]; then
                echo "toolchain: Java $major is too old, Spark needs 17 or newer. Run: sudo apt-get install openjdk-17-jre-headless    (or set JAVA_HOME and PATH to a newer one)" >&2
                missing=1
            fi
            ;;
        javac) need "a Java compiler (for the tests' programs beside Apache's classes)" javac openjdk-17-jdk-headless ;;
        maven) need "Maven (it brings Apache Kafka's jars for the tests)" mvn maven ;;
        go)
            need "Go (for the tests' program on franz-go)" go golang-go
            # "go1.26.8"; from 1.21 on Go brings the version that a go.mod names by itself.
            minor=$(go env GOVERSION 2>/dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
            if [ -n "$minor" ] && [ "$minor" -lt 21 ]; then
                echo "toolchain: Go 1.$minor is too old, 1.21 or newer is needed. Install one from https://go.dev/dl    (or your system's newer package)" >&2
                missing=1
            fi
            ;;
    esac
done
exit $missing
