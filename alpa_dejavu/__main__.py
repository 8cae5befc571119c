"""`python -m alpa_dejavu` is `alpa-dejavu`."""

from alpa_dejavu.cli import main

if __name__ == "__main__":
    main()
