// The header that packet functions include. CPU compilers (g++, clang++) and GPU compilers (NVRTC, nvcc)
// compile the same source, as C++17 without exceptions, RTTI or the standard library.
//
//   #include <inlane.h>
//
//   struct drop_runts {                                  // the members are the state of one pipeline, zeroed at the start
//       uint64_t runts;
//       INLANE inlane::verdict packet(inlane::packet &p) {
//           if (p.length() >= 60) return inlane::forward;
//           inlane::add(runts, 1);
//           return inlane::drop;
//       }
//   };
//   INLANE_FUNCTION(drop_runts)
//
// Run it with `inlane forward --function FILE.cu:drop_runts`, on the CPU or with `--on gpu:0`.
//
// What a function consists of
//
//   verdict packet(packet &)    Called once per packet, by one thread. Returns forward, drop or to_port(n).
//   void burst(burst &)         Called once per burst, by all threads of a block together. Use it if threads share work, or if a
//                               warp handles one packet. A function has either `packet` or `burst`.
//   void tick(const context &)  Optional. Called between bursts while no packets are waiting, on a GPU at most once per millisecond by all
//                               threads of one block. Use it for time limits. The last call of a run has the time UINT64_MAX.
//
// `packet` and `burst` may take a `const inlane::context &` as a second argument, with the time and the
// output region. See inlane_block.h.
//
// These constants, declared as `static constexpr`, are optional:
//
//   uint32_t reads, writes      The number of bytes at a packet's front that the function reads or writes; 0 for none. Without them,
//                               inlane assumes all bytes. Small values save PCIe traffic if packets stay in host memory.
//   uint32_t parameters         The number of leading members, each a uint64_t, that the command line sets: FILE.cu:NAME:1,0x10.
//   uint64_t output_bytes       The size of a zeroed output region, for functions that assemble data.
//
// Threads and state
//
//   CPU   One thread runs an instance, with a state of its own. A block is that one thread.
//   GPU   Many blocks run the function on the same state at the same time. Change state with `add` and the other atomic functions.
//
// Reading beyond a packet's length returns 0, and writing there does nothing. No alignment is needed.
#ifndef INLANE_H
#define INLANE_H

#include "inlane_block.h"  // threads of a block, atomic functions on state, bytes
#include "inlane_packet.h" // packet, front, burst
#include "inlane_layers.h" // layers_of: where IP, TCP and UDP begin
#include "inlane_run.h"    // how executors call a function; INLANE_FUNCTION

#endif
