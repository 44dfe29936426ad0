# What `.ci/aarch64` and `.ci/avx512` share. They set `folder`, and `arch` to Debian's word for it.

export PIP_DISABLE_PIP_VERSION_CHECK=1
root=$folder/root
debs=(
    python3.11 python3.11-minimal libpython3.11-stdlib libpython3.11-minimal
    libc6 libgcc-s1 libstdc++6 libgomp1 zlib1g libffi8 libexpat1 libssl3 liblzma5 libbz2-1.0
    libcrypt1 libuuid1
)

# The packages of Debian 12, the last with Python 3.11, from where this machine gets its own.
apt_apart() {
    apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" \
        -o Dir::State="$folder/apt" -o Dir::State::status="$folder/apt/status" \
        -o Dir::Cache="$folder/apt" -o APT::Sandbox::User= "$@"
}

# Unpack these packages, without what they need, in a folder that is not there yet.
unpack() {
    local target=$1 deb
    shift
    rm -rf "$target.new"
    mkdir -p "$target.new" "$folder/apt/lists/partial" "$folder/apt/archives/partial" "$folder/debs"
    : >"$folder/apt/status"
    apt_apart update
    (cd "$folder/debs" && apt_apart download "$@")
    for deb in "$folder/debs"/*.deb; do dpkg-deb -x "$deb" "$target.new"; done
    rm -rf "$folder/debs" "$folder/apt"
    mv "$target.new" "$target"
}

# Install these packages on this machine, as root or by sudo.
install_here() {
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# Install in a folder, for Python 3.11, by a pip that comes with this machine's Python.
pip_apart() {
    local target=$1
    shift
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q --target "$target" --only-binary=:all: --no-compile \
        --python-version 3.11 --implementation cp "$@"
    rm -rf "$folder/venv"
}
