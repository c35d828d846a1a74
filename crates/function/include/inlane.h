// What packet functions are written against: one source for the CPU (g++, clang++) and the GPU (NVRTC, nvcc), C++17.
//
//   #include <inlane.h>
//
//   struct drop_runts {                                  // its members are the pipeline's state, zeroed at the start
//       uint64_t runts;
//       INLANE inlane::verdict packet(inlane::packet &p) {
//           if (p.length() >= 60) return inlane::forward;
//           inlane::add(runts, 1);
//           return inlane::drop;
//       }
//   };
//   INLANE_FUNCTION(drop_runts)
//
// A function has `packet` (called once a packet) or `burst` (called once a burst, by all threads of a block together), and may
// have `tick`, called now and then without packets. Each may take an `inlane::context` as a second (for tick: only) argument.
//
// On a GPU many blocks run the same function on the same state at the same time: change state with `inlane::add` and its
// kin. On the CPU an instance belongs to one thread, and those are plain additions.
//
// Accessors of a packet are bounded by its length: reading outside gives 0, writing outside does nothing. They need no
// alignment.
#ifndef INLANE_H
#define INLANE_H

#include "inlane_block.h"  // thread_index, threads, sync, any; add, replace, load, store; bytes16
#include "inlane_packet.h" // packet, front, burst
#include "inlane_layers.h" // layers_of: where IP, TCP and UDP begin
#include "inlane_run.h"    // how executors call a function; INLANE_FUNCTION

#endif
