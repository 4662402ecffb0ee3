/*
 * A disk that is slow or dying, for a program that is started with this library preloaded.
 *
 * FAULTY_DISK names a file of rules, one a line, that is mapped and so may be rewritten in place at
 * any time (4096 bytes, the rest newlines): OPERATION FAULT AMOUNT PATH
 *
 *   OPERATION  open, stat, read, write or sync
 *   FAULT      delay (AMOUNT milliseconds), eio (reads and writes that touch bytes from AMOUNT on),
 *              enospc (the same), short (at most AMOUNT bytes a call)
 *   PATH       every file whose path begins so
 *
 * A delayed read is one of bytes that nobody has read since this library was loaded: others find
 * them in the page cache, and a read that asks for cached bytes only (RWF_NOWAIT) finds no others.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define RULES_BYTES 4096

static const char *rules;

__attribute__((constructor)) static void map_rules(void)
{
	const char *name = getenv("FAULTY_DISK");
	int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
	if (fd >= 0) {
		void *at = mmap(NULL, RULES_BYTES, PROT_READ, MAP_SHARED, fd, 0);
		rules = at == MAP_FAILED ? NULL : at;
		close(fd);
	}
}

#define PART_BYTES 65536
#define PARTS (1 << 16)

/* Parts of files that were read, by inode and place; a full table forgets none and takes no more. */
static _Atomic unsigned long long parts[PARTS];

/* Whether these bytes were read before; `reads` marks them as read. */
static int was_read(int fd, long long offset, size_t count, int reads)
{
	struct stat found;
	long long part = offset / PART_BYTES, last = (offset + (count ? count - 1 : 0)) / PART_BYTES;
	int all = 1;
	if (fstat(fd, &found))
		return 1;
	for (; part <= last && part * PART_BYTES < found.st_size; part++) {
		unsigned long long name = ((unsigned long long)found.st_ino << 24) + part + 1;
		size_t at = name * 0x9e3779b97f4a7c15ULL >> 48, tries = 0;
		while (parts[at] && parts[at] != name && ++tries < PARTS)
			at = (at + 1) % PARTS;
		if (parts[at] == name)
			continue;
		all = 0;
		if (reads && !parts[at])
			parts[at] = name;
	}
	return all;
}

static void nap(long milliseconds)
{
	struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

/*
 * What the rules say of one operation on one path. 0, or the error to fail with. `cached`: 1 if only
 * bytes of the page cache are asked for, -1 if all of them are there.
 */
static int judge(const char *operation, const char *path, long long end, size_t *most, int cached)
{
	char copy[RULES_BYTES + 1], *line, *rest = copy;
	int fault = 0;
	if (!rules)
		return 0;
	memcpy(copy, rules, RULES_BYTES);
	copy[RULES_BYTES] = 0;
	while (!fault && (line = strsep(&rest, "\n"))) {
		char what[16], how[16], where[PATH_MAX];
		long long amount;
		if (sscanf(line, "%15s %15s %lld %4095[^\n]", what, how, &amount, where) != 4)
			continue;
		if (strcmp(what, operation) || strncmp(path, where, strlen(where)))
			continue;
		if (!strcmp(how, "delay") && cached > 0)
			fault = EAGAIN;
		else if (!strcmp(how, "delay") && !cached)
			nap(amount);
		else if (!strcmp(how, "eio") && end > amount)
			fault = EIO;
		else if (!strcmp(how, "enospc") && end > amount)
			fault = ENOSPC;
		else if (!strcmp(how, "short") && most && *most > (size_t)amount)
			*most = amount;
	}
	return fault;
}

static int judge_fd(const char *operation, int fd, long long offset, size_t *count, int cached)
{
	char link[40], path[PATH_MAX];
	int before = errno, fault = 0;
	ssize_t length;
	if (!rules || rules[0] == '\n')
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof path - 1);
	if (length > 0) {
		path[length] = 0;
		if (offset < 0)
			offset = lseek(fd, 0, SEEK_CUR);
		if (!strcmp(operation, "read") && was_read(fd, offset, count ? *count : 1, 0))
			cached = -1;
		fault = judge(operation, path, offset + (count ? (long long)*count : 1), count, cached);
		if (!fault && !strcmp(operation, "read"))
			was_read(fd, offset, count ? *count : 1, 1);
	}
	errno = fault ? fault : before;
	return fault;
}

static int judge_path(const char *operation, int folder, const char *name)
{
	char link[40], path[2 * PATH_MAX] = "";
	int before = errno, fault;
	if (!rules || rules[0] == '\n' || !name)
		return 0;
	if (name[0] != '/') {
		ssize_t length;
		if (folder == AT_FDCWD)
			strcpy(link, "/proc/self/cwd");
		else
			snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
		length = readlink(link, path, PATH_MAX - 1);
		length = length < 0 ? 0 : length;
		path[length] = '/';
		path[length + 1] = 0;
	}
	strncat(path, name, PATH_MAX - 1);
	fault = judge(operation, path, LLONG_MAX, NULL, 0);
	errno = fault ? fault : before;
	return fault;
}

#define REAL(result, name, ...) \
	static result (*real)(__VA_ARGS__); \
	if (!real) \
		real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPEN(name) \
	int name(const char *path, int flags, ...) \
	{ \
		va_list more; \
		REAL(int, #name, const char *, int, ...); \
		va_start(more, flags); \
		mode_t mode = va_arg(more, mode_t); \
		va_end(more); \
		return judge_path("open", AT_FDCWD, path) ? -1 : real(path, flags, mode); \
	}
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
	int name(int folder, const char *path, int flags, ...) \
	{ \
		va_list more; \
		REAL(int, #name, int, const char *, int, ...); \
		va_start(more, flags); \
		mode_t mode = va_arg(more, mode_t); \
		va_end(more); \
		return judge_path("open", folder, path) ? -1 : real(folder, path, flags, mode); \
	}
OPENAT(openat)
OPENAT(openat64)

#define STAT(name, type) \
	int name(const char *path, struct type *found) \
	{ \
		REAL(int, #name, const char *, struct type *); \
		return judge_path("stat", AT_FDCWD, path) ? -1 : real(path, found); \
	}
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define STATAT(name, type) \
	int name(int folder, const char *path, struct type *found, int flags) \
	{ \
		REAL(int, #name, int, const char *, struct type *, int); \
		return judge_path("stat", folder, path) ? -1 : real(folder, path, found, flags); \
	}
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

ssize_t read(int fd, void *to, size_t count)
{
	REAL(ssize_t, "read", int, void *, size_t);
	return judge_fd("read", fd, -1, &count, 0) ? -1 : real(fd, to, count);
}

ssize_t write(int fd, const void *from, size_t count)
{
	REAL(ssize_t, "write", int, const void *, size_t);
	return judge_fd("write", fd, -1, &count, 0) ? -1 : real(fd, from, count);
}

#define PREAD(name, type) \
	ssize_t name(int fd, void *to, size_t count, type offset) \
	{ \
		REAL(ssize_t, #name, int, void *, size_t, type); \
		return judge_fd("read", fd, offset, &count, 0) ? -1 : real(fd, to, count, offset); \
	}
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define PWRITE(name, type) \
	ssize_t name(int fd, const void *from, size_t count, type offset) \
	{ \
		REAL(ssize_t, #name, int, const void *, size_t, type); \
		return judge_fd("write", fd, offset, &count, 0) ? -1 : real(fd, from, count, offset); \
	}
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* The first of the pieces is read; fewer bytes than asked for are every reader's business. */
#define PREADV2(name, type) \
	ssize_t name(int fd, const struct iovec *to, int pieces, type offset, int flags) \
	{ \
		REAL(ssize_t, #name, int, const struct iovec *, int, type, int); \
		struct iovec first = pieces > 0 ? to[0] : (struct iovec){NULL, 0}; \
		size_t asked = first.iov_len; \
		if (judge_fd("read", fd, offset, &first.iov_len, (flags & RWF_NOWAIT) != 0)) \
			return -1; \
		return first.iov_len < asked ? real(fd, &first, 1, offset, flags) \
					     : real(fd, to, pieces, offset, flags); \
	}
PREADV2(preadv2, off_t)
PREADV2(preadv64v2, off64_t)

#define PREADV(name, type) \
	ssize_t name(int fd, const struct iovec *to, int pieces, type offset) \
	{ \
		REAL(ssize_t, #name, int, const struct iovec *, int, type); \
		struct iovec first = pieces > 0 ? to[0] : (struct iovec){NULL, 0}; \
		size_t asked = first.iov_len; \
		if (judge_fd("read", fd, offset, &first.iov_len, 0)) \
			return -1; \
		return first.iov_len < asked ? real(fd, &first, 1, offset) \
					     : real(fd, to, pieces, offset); \
	}
PREADV(preadv, off_t)
PREADV(preadv64, off64_t)

#define SENDFILE(name, type) \
	ssize_t name(int to, int from, type *offset, size_t count) \
	{ \
		REAL(ssize_t, #name, int, int, type *, size_t); \
		return judge_fd("read", from, offset ? *offset : -1, &count, 0) \
			       ? -1 \
			       : real(to, from, offset, count); \
	}
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

#define SYNC(name) \
	int name(int fd) \
	{ \
		REAL(int, #name, int); \
		return judge_fd("sync", fd, 0, NULL, 0) ? -1 : real(fd); \
	}
SYNC(fsync)
SYNC(fdatasync)
