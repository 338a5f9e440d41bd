# What every step selects: cargo chooses the features of the dependencies for all selected packages together, and with one
# selection everything is built once. The models have a step, and flags, of their own.
# shellcheck shell=bash disable=SC2034
selection=(--workspace --exclude tidegate-models --locked --quiet)
