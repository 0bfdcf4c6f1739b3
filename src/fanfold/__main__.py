"""`python -m fanfold` is the command `fanfold`."""

from fanfold.cli import main

main()
