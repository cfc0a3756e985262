/* Writes the time at which it began, in nanoseconds of CLOCK_BOOTTIME, into the file that its first argument names. */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec now;
    char line[32];
    int file, length;

    clock_gettime(CLOCK_BOOTTIME, &now);
    if (argc < 2 || (file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0600)) < 0)
        return 1;
    length = snprintf(line, sizeof line, "%lld%09ld\n", (long long)now.tv_sec, now.tv_nsec);
    return write(file, line, length) != length;
}
