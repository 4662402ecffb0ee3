/* Lengthens the round trip between two network namespaces: a pair of tap devices, the frames of the
 * first held back for a while, those of the second passed on at once.
 *
 *   relay NAMESPACE_A DEVICE_A NAMESPACE_B DEVICE_B MICROSECONDS
 *
 * Prints "ready" when both devices exist. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 1 << 15, FRAME = 1600, BATCH = 128 };

struct held {
    long long due_us;
    int length;
    unsigned char bytes[FRAME];
};

static long long now_us(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000LL + at.tv_nsec / 1000;
}

static int open_tap(const char *space, const char *device) {
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", space);
    int home = open(path, O_RDONLY | O_CLOEXEC);
    if (home < 0 || setns(home, CLONE_NEWNET) != 0) {
        perror(path);
        exit(1);
    }
    close(home);
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq wish = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    strncpy(wish.ifr_name, device, IFNAMSIZ - 1);
    if (tap < 0 || ioctl(tap, TUNSETIFF, &wish) != 0) {
        perror(device);
        exit(1);
    }
    return tap;
}

int main(int count, char **words) {
    if (count != 6) {
        fprintf(stderr, "usage: relay NS_A DEV_A NS_B DEV_B MICROSECONDS\n");
        return 2;
    }
    struct held *queue = calloc(SLOTS, sizeof *queue);
    unsigned first = 0, next = 0;
    int slow = open_tap(words[1], words[2]), fast = open_tap(words[3], words[4]);
    long long delay_us = atoll(words[5]);
    unsigned char frame[FRAME];
    prctl(PR_SET_TIMERSLACK, 1000UL);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct pollfd both[2] = {{slow, POLLIN, 0}, {fast, POLLIN, 0}};
        struct timespec wait, *until = NULL;
        if (first != next) {
            long long left_us = queue[first % SLOTS].due_us - now_us();
            left_us = left_us > 0 ? left_us : 0;
            wait = (struct timespec){left_us / 1000000, left_us % 1000000 * 1000};
            until = &wait;
        }
        ppoll(both, 2, until, NULL);
        for (int turn = 0; turn < BATCH; turn++) {
            ssize_t got = read(fast, frame, sizeof frame);
            if (got <= 0 || write(slow, frame, got) < 0) break;
        }
        for (int turn = 0; turn < BATCH && next - first < SLOTS; turn++) {
            struct held *slot = &queue[next % SLOTS];
            ssize_t got = read(slow, slot->bytes, FRAME);
            if (got <= 0) break;
            slot->length = got;
            slot->due_us = now_us() + delay_us;
            next++;
        }
        while (first != next && queue[first % SLOTS].due_us <= now_us()) {
            struct held *slot = &queue[first++ % SLOTS];
            if (write(fast, slot->bytes, slot->length) < 0) continue;
        }
    }
}
