// The words that the host shares with the staging kernels. `staging_words.rs` has the same structs, and
// `staging.cu` explains them. This file is plain C++, so both an ordinary compiler and NVRTC check the
// layout.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

struct Control {
    u64 failed;  // written by a side that gave up: 1 if it waited for a command, 2 if for a chunk
    u64 pad0[15];
    u64 leave;   // set to 1 by the CPU to make both kernels leave, whatever they wait for
    u64 pad1[15];
};

// The number of timestamps of a channel's pusher. The puller has as many. They exist only if the code is
// compiled with TRACE.
constexpr u32 MARKS = 6;

struct Channel {
    u64 ready;
    u64 seen;    // the newest command that this channel of the pusher has read; the CPU may overwrite its line
    u64 pushed[MARKS];
    u64 pad0[8];
    u64 taken;
    u64 pad1;
    u64 pulled[MARKS];
    u64 pad2[8];
};

// The value of a command's `bytes` that ends the kernel.
constexpr u64 LEAVE = ~0ull;
// This bit of a command's `chunk` is set if the transfer is sent as lines. A line is 16 bytes: 12 of data and
// 4 of the command's number.
constexpr u64 LINES = 1ull << 63;
