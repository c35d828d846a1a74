#!/bin/sh
exec taskset -c "$INLANE_NTB_PE" "$@"
