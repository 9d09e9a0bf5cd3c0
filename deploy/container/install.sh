#!/bin/sh
# Installs svc on Debian 12 or newer, as root. The Dockerfile has no other steps.
#
#   install.sh program DIST [LOCK]   create /opt/svc, a virtual environment, from the wheel DIST or the best one in
#                                    the folder DIST; LOCK is a lock file with the versions of the dependencies
#   install.sh system                install what svc needs at run time, create its user and its folder /data
#   install.sh all DIST [LOCK]       both
#
# EXTRAS are the extras of the distribution, separated by commas. SVC_UID is the id of the user.
set -eu

: "${EXTRAS=postgres,redis,s3}" "${SVC_UID:=10001}"
PREFIX=/opt/svc
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

install_packages() {
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    apt-get clean
    rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
}

install_program() {
    dist=$1 lock=${2:-}
    install_packages ca-certificates python3 python3-venv
    work=$(mktemp -d)
    python3 -m venv "$PREFIX"
    # Without an index: a public index may have another project under this name.
    case $dist in
        *.whl) cp "$dist" "$work/" ;;
        *) "$PREFIX/bin/pip" download -q --no-index --no-deps --only-binary :all: -f "$dist" -d "$work" svc-gateway ;;
    esac
    : >"$work/constraints.txt"
    # pip takes no extras from a lock with hashes, but its versions.
    [ -z "$lock" ] || sed -n '/^[A-Za-z0-9].*==/{s/ *\\$//;p;}' "$lock" >"$work/constraints.txt"
    wheel=$(echo "$work"/*.whl)
    "$PREFIX/bin/pip" install -q --only-binary :all: -c "$work/constraints.txt" "$wheel${EXTRAS:+[$EXTRAS]}"
    case ,$EXTRAS, in
        *,local,* | *,speech,* | *,voice,*) ;; # these download models with pip
        *) "$PREFIX/bin/pip" uninstall -q -y pip setuptools ;;
    esac
    rm -rf "$work" ~root/.cache
    "$PREFIX/bin/svc" --version
}

install_system() {
    install_packages ca-certificates libgomp1 python3
    id svc >/dev/null 2>&1 || useradd --uid "$SVC_UID" --user-group --no-create-home --home-dir /data \
        --shell /usr/sbin/nologin svc
    install -d -m 0700 -o svc -g svc /data
}

case "${1:-} $#" in
    "program 2" | "program 3")
        shift
        install_program "$@"
        ;;
    "system 1")
        install_system
        ;;
    "all 2" | "all 3")
        shift
        install_program "$@"
        install_system
        ;;
    *)
        echo "usage: install.sh program DIST [LOCK] | system | all DIST [LOCK]" >&2
        exit 2
        ;;
esac
