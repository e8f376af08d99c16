/*
 * Loaded into the daemon with LD_PRELOAD: a wall clock that a test can set. The offset, in seconds, is the text of the
 * file that $TEST_WALL_CLOCK names. The monotonic clock is left alone.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int file = -1;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("TEST_WALL_CLOCK");
    if (path != NULL)
        file = open(path, O_RDONLY | O_CLOEXEC);
}

static time_t offset(void)
{
    char text[32];
    ssize_t length = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    return (time_t)strtoll(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (failed == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into != NULL)
        *into = exact.tv_sec;
    return exact.tv_sec;
}
