#!/bin/sh
# run.sh FOLDER: starts jobs of many PEs, and puts by threads and by processes. FOLDER has inlane, libinlane_shmem, UCX and the compiled programs.
cd "${1:?}" && export LD_LIBRARY_PATH="$PWD"
nproc; uname -r
for round in 1 2 3; do for pes in 2 16 64 256 1024; do for transport in windows ucx; do
    [ $pes = 1024 ] && [ $round -gt 1 ] && continue
    echo "$transport: $(timeout 100 ./inlane ntb run -n $pes --heap 1M --transport $transport -- ./start 10 2>&1 | tail -1)"
done; done; done
for bytes in 8 4096; do for what in "" get; do
    for threads in 1 2 4; do UCX_TLS=tcp,self timeout 60 ./inlane ntb run -n 2 --transport ucx -- ./threads $threads 20000 $bytes $what 2>&1; done
    for pairs in 2 4; do UCX_TLS=tcp,self timeout 60 ./inlane ntb run -n $((2 * pairs)) --transport ucx -- ./threads 1 20000 $bytes $what 2>&1; done
done; done
