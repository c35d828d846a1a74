// The header is also one of C++.
#include <inlane_batch.h>

int main() {
    inlane_settings settings = INLANE_SETTINGS;
    inlane_receiver *receiver = nullptr;
    return settings.size == sizeof settings && inlane_receiver_open(&receiver, "", &settings) == INLANE_USAGE ? 0 : 1;
}
