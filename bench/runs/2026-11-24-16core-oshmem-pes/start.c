#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}
int main(int c,char**v){ int n=c>1?atoi(v[1]):20; double a=now(); shmem_init(); double i=now(); for(int k=0;k<5;k++)shmem_barrier_all(); double b=now(); for(int k=0;k<n;k++) shmem_barrier_all(); double e=now(); if(shmem_my_pe()==0) printf("%d PEs: init %.3f s, barrier %.1f us\n",shmem_n_pes(),i-a,(e-b)/n*1e6); shmem_finalize(); return 0;}
