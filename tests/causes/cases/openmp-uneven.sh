# SPDX-License-Identifier: Apache-2.0
# Two threads of OpenMP that meet after each step: one of them loads its input in it.
packages=
kind=barrier-wait
text='solver waited for the other threads of an OpenMP team in solve.*: solver [0-9]+ ended it .*, while solver [0-9]+ was mostly in sleep in load_input'
prepare() { binary=$(program solver.c -fopenmp); }
cause() { run_as_target "$binary" uneven "$SECONDS_OF_RUN"; }
twin() { run_as_target "$binary" even "$SECONDS_OF_RUN"; }
