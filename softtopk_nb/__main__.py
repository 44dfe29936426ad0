"""``python -m softtopk_nb``: what this installation runs on."""

from ._versions import show_versions

if __name__ == "__main__":
    show_versions()
