// Runs one packet function on frames from a file, in bursts. Each frame is an allocation of exactly its
// length. Built with sanitizers, which end the program at the first access outside a frame. Included after
// the functions' sources.
//
//     main NAME STATE FRAMES
//         STATE: a file with the beginning of the state
//         FRAMES: a file with each frame's length (4 bytes, little-endian) and bytes
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

static std::vector<uint8_t> contents(const char *path) {
    std::vector<uint8_t> bytes;
    FILE *file = fopen(path, "rb");
    if (file == nullptr) exit(2);
    for (int c; (c = fgetc(file)) != EOF;) bytes.push_back(static_cast<uint8_t>(c));
    fclose(file);
    return bytes;
}

int main(int, char **arguments) {
    const inlane_entry *entry = nullptr;
    for (const auto &known : known_functions)
        if (strcmp(known.name, arguments[1]) == 0) entry = known.entry;
    if (entry == nullptr) return 2;
    std::vector<uint8_t> beginning = contents(arguments[2]), frames = contents(arguments[3]);
    void *state = aligned_alloc(128, (entry->info.state_bytes + 127) / 128 * 128);
    memset(state, 0, entry->info.state_bytes);
    if (!beginning.empty()) memcpy(state, beginning.data(), beginning.size());
    std::vector<uint8_t> output(entry->info.output_bytes);
    inlane_context context = {state, output.data(), output.size(), 1, 0, 0};
    uint64_t sum = 0;
    for (size_t at = 0; at < frames.size();) {
        std::vector<inlane_descriptor> burst;
        while (at < frames.size() && burst.size() < 1 + at % 70) {
            uint32_t length;
            memcpy(&length, &frames[at], 4);
            uint8_t *bytes = static_cast<uint8_t *>(malloc(length));
            if (length > 0) memcpy(bytes, frames.data() + at + 4, length);
            burst.push_back({reinterpret_cast<uint64_t>(bytes), length, 0});
            at += 4 + length;
        }
        std::vector<inlane_packet_verdict> verdicts(burst.size());
        uint32_t count = static_cast<uint32_t>(burst.size());
        sum += entry->run(burst.data(), sizeof(inlane_descriptor), count, verdicts.data(), &context);
        entry->tick(&context);
        context.now_ns += 1000;
        for (const inlane_descriptor &each : burst) free(reinterpret_cast<void *>(each.address));
    }
    free(state);
    printf("%lu\n", sum);
}
