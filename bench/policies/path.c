/* A path between two network namespaces: a line with a queue one way, a delay on the way back.

   path SERVER CLIENTS BITS_S QUEUE_BYTES DELAY_MS[,DELAY_MS...]

   Makes a TUN device `eth0` in both namespaces, prints "ready" and forwards until it is killed.
   What leaves the server waits for a line of BITS_S behind the device; a packet that finds
   QUEUE_BYTES there is dropped. What clients send is delayed, by the address of the client: the
   last byte of it, modulo the number of delays, says which. So DELAY_MS is the round-trip time. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { PACKET_BYTES = 1600, FRAME_BYTES = 14, MOST_DELAYS = 16, AT_ONCE = 64, SOURCE_END = 15 };

struct packet {
    struct packet *next;
    double due;
    int length;
    unsigned char data[PACKET_BYTES];
};

/* As a token bucket of 32 KiB on a line of 33 Mbit/s. */
static const double BURST_S = 0.008;

/* Packets in the order of their times. */
struct queue {
    struct packet *first, *last;
    long bytes;
};

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec * 1e-9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int make_device(const char *space) {
    char path[256];
    int own = open("/proc/self/ns/net", O_RDONLY);
    snprintf(path, sizeof path, "/run/netns/%s", space);
    int there = open(path, O_RDONLY);
    if (there < 0 || setns(there, CLONE_NEWNET)) die(path);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strcpy(request.ifr_name, "eth0");
    if (device < 0 || ioctl(device, TUNSETIFF, &request)) die("tun");
    if (setns(own, CLONE_NEWNET)) die("setns");
    close(there);
    close(own);
    return device;
}

static struct packet *take(int device) {
    static struct packet *spare;
    if (!spare && !(spare = malloc(sizeof *spare))) die("malloc");
    spare->length = read(device, spare->data, PACKET_BYTES);
    if (spare->length <= 0) return NULL;
    struct packet *found = spare;
    spare = NULL;
    return found;
}

static void append(struct queue *queue, struct packet *packet, double due) {
    packet->due = due;
    packet->next = NULL;
    if (queue->first) queue->last->next = packet;
    else queue->first = packet;
    queue->last = packet;
    queue->bytes += packet->length;
}

/* Send what is due, and return when more will be. */
static double deliver(struct queue *queue, int device, double at) {
    struct packet *packet;
    while ((packet = queue->first) && packet->due <= at) {
        if (write(device, packet->data, packet->length) < 0 && errno == EAGAIN) return at + 1e-3;
        queue->first = packet->next;
        queue->bytes -= packet->length;
        free(packet);
    }
    return packet ? packet->due : at + 1.0;
}

int main(int count, char **words) {
    if (count != 6) return 2;
    double bytes_s = atof(words[3]) / 8, delays_s[MOST_DELAYS];
    long most_bytes = atol(words[4]);
    int delays = 0;
    for (char *part = strtok(words[5], ","); part && delays < MOST_DELAYS; part = strtok(NULL, ","))
        delays_s[delays++] = atof(part) / 1e3;
    struct pollfd ends[2] = {{make_device(words[1]), POLLIN, 0}, {make_device(words[2]), POLLIN, 0}};
    struct queue line = {0}, back[MOST_DELAYS] = {{0}};
    struct packet *packet;
    double free_at = 0;
    puts("ready");
    fflush(stdout);
    for (;;) {
        double at = now(), next = at + 1.0;
        for (int i = 0; i < AT_ONCE && (packet = take(ends[0].fd)); i++) {
            if (line.bytes + packet->length > most_bytes) {
                free(packet);
                continue;
            }
            /* What the line did not carry while this program slept it carries now. */
            if (free_at < at - BURST_S) free_at = at - BURST_S;
            free_at += (packet->length + FRAME_BYTES) / bytes_s;
            append(&line, packet, free_at);
        }
        for (int i = 0; i < AT_ONCE && (packet = take(ends[1].fd)); i++) {
            int which = packet->data[SOURCE_END] % delays;
            append(&back[which], packet, at + delays_s[which]);
        }
        next = deliver(&line, ends[1].fd, at);
        for (int i = 0; i < delays; i++) {
            double due = deliver(&back[i], ends[0].fd, at);
            if (due < next) next = due;
        }
        double left = next - now();
        struct timespec pause = {0, left > 1e-4 ? (long)((left < 0.9 ? left : 0.9) * 1e9) : 100000};
        if (ppoll(ends, 2, &pause, NULL) < 0 && errno != EINTR) die("ppoll");
    }
}
