/* put N times of BYTES with one quiet: put BYTES COUNT [nbi] */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}
int main(int argc,char**argv){size_t b=atol(argv[1]);long n=atol(argv[2]);int nbi=argc>3&&!strcmp(argv[3],"nbi"),get=argc>3&&!strcmp(argv[3],"get");
shmem_init();char*r=shmem_align(4096,b<4096?4096:b),*l=aligned_alloc(4096,b<4096?4096:b);memset(l,1,b);
int me=shmem_my_pe();
for(int k=0;k<6;k++){shmem_barrier_all();double t=now();if(!me){for(long i=0;i<n;i++)if(get)shmem_getmem(l,r,b,1);else if(argc>3&&!strcmp(argv[3],"add"))shmem_long_atomic_add((long*)r,1,1);else if(argc>3&&!strcmp(argv[3],"fadd"))shmem_long_atomic_fetch_add((long*)r,1,1);else if(nbi)shmem_putmem_nbi(r,l,b,1);else shmem_putmem(r,l,b,1);double u=now();shmem_quiet();double e=now();printf("%zu %.1f ns, quiet %.1f us\n",b,(e-t)/n*1e9,(e-u)*1e6);}
shmem_barrier_all();}
shmem_finalize();}
