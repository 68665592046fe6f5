// A file system that shows a directory, and answers each read of a log after a second while that has a file
// named `slow`: slow_disk DIRECTORY -f MOUNT_POINT
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int root;

static int outcome(int result) { return result < 0 ? -errno : result; }
static const char *below(const char *path) { return path[1] ? path + 1 : "."; }

static int do_getattr(const char *path, struct stat *found, struct fuse_file_info *file)
{
    return outcome(fstatat(root, below(path), found, AT_SYMLINK_NOFOLLOW));
}

static int do_readdir(const char *path, void *names, fuse_fill_dir_t fill, off_t offset,
                      struct fuse_file_info *file, enum fuse_readdir_flags flags)
{
    DIR *directory = fdopendir(openat(root, below(path), O_RDONLY));
    if (!directory)
        return -errno;
    for (struct dirent *entry; (entry = readdir(directory));)
        fill(names, entry->d_name, NULL, 0, 0);
    closedir(directory);
    return 0;
}

static int do_open(const char *path, struct fuse_file_info *file)
{
    file->keep_cache = 1;
    file->fh = openat(root, below(path), file->flags);
    return outcome((int)file->fh) < 0 ? -errno : 0;
}

static int do_create(const char *path, mode_t mode, struct fuse_file_info *file)
{
    file->fh = openat(root, below(path), file->flags | O_CREAT, mode);
    return outcome((int)file->fh) < 0 ? -errno : 0;
}

static int do_read(const char *path, char *data, size_t size, off_t offset, struct fuse_file_info *file)
{
    if (strstr(path, ".log") && !faccessat(root, "slow", F_OK, 0))
        sleep(1);
    return outcome(pread(file->fh, data, size, offset));
}

static int do_write(const char *path, const char *data, size_t size, off_t offset, struct fuse_file_info *file)
{
    return outcome(pwrite(file->fh, data, size, offset));
}

static int do_truncate(const char *path, off_t size, struct fuse_file_info *file)
{
    int fd = openat(root, below(path), O_WRONLY), result = outcome(ftruncate(fd, size));
    close(fd);
    return result;
}

static int do_fsync(const char *path, int data, struct fuse_file_info *file)
{
    return outcome(fsync(file->fh));
}

static int do_release(const char *path, struct fuse_file_info *file) { return outcome(close(file->fh)); }
static int do_unlink(const char *path) { return outcome(unlinkat(root, below(path), 0)); }

static int do_rename(const char *from, const char *to, unsigned flags)
{
    return outcome(renameat2(root, below(from), root, below(to), flags));
}

int main(int count, char **arguments)
{
    static const struct fuse_operations operations = {
        .getattr = do_getattr, .readdir = do_readdir, .open = do_open, .create = do_create,
        .read = do_read, .write = do_write, .truncate = do_truncate, .fsync = do_fsync,
        .release = do_release, .unlink = do_unlink, .rename = do_rename,
    };
    if (count < 3 || (root = open(arguments[1], O_RDONLY | O_DIRECTORY)) < 0)
        return 2;
    return fuse_main(count - 1, arguments + 1, &operations, NULL);
}
