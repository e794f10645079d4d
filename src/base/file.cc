#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"

namespace base {
namespace {

struct OpenedFile {
  UniqueFd fd;
  std::uint64_t size = 0;
};

Result<OpenedFile> OpenRegular(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    return Fail(ErrorKind::kIo, "cannot open '{}': {}", path, std::strerror(errno));
  }
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) {
    return Fail(ErrorKind::kIo, "cannot stat '{}': {}", path, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return Fail(ErrorKind::kIo, "'{}' is not a regular file", path);
  }
  return OpenedFile{std::move(fd), static_cast<std::uint64_t>(status.st_size)};
}

// Tells a path that the caller must change from a device that is full or broken.
ErrorKind KindOfWriteError(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case ENAMETOOLONG:
      return ErrorKind::kInvalidInput;
    default:
      return ErrorKind::kIo;
  }
}

std::unexpected<Error> WriteError(const std::string& path) {
  const int error = errno;
  return Fail(KindOfWriteError(error),
              "cannot write '{}': {}; give a path where a file can be made", path,
              std::strerror(error));
}

Result<void> WriteAll(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return WriteError(path);
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// What the kernel puts behind a name other than a file of its own must not be replaced by one.
bool IsRegularOrAbsent(const std::string& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
}

// Makes a file of a new name beside `path`, which becomes that name.
UniqueFd MakeTemporary(std::string& path) {
  path += ".XXXXXX";
  return UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
}

Result<void> WriteInPlace(const std::string& path, std::string_view content) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return WriteError(path);
  return WriteAll(fd.get(), content, path);
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, Bytes limit) {
  auto file = OpenRegular(path);
  if (!file) return Forward(file);
  if (Bytes(file->size) > limit) {
    return Fail(ErrorKind::kIo, "'{}' has {}, more than the {} accepted here", path,
                FormatBytes(Bytes(file->size)), FormatBytes(limit));
  }
  std::string content(file->size, '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(file->fd.get(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fail(ErrorKind::kIo, "cannot read '{}': {}", path, std::strerror(errno));
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

Result<void> WriteFileAtomically(const std::string& path, std::string_view content) {
  if (!IsRegularOrAbsent(path)) return WriteInPlace(path, content);
  std::string temporary = path;
  const UniqueFd fd = MakeTemporary(temporary);
  if (!fd.valid()) return WriteError(path);
  auto written = WriteAll(fd.get(), content, path);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  if (written && (::fchmod(fd.get(), 0666 & ~mask) != 0 || ::fsync(fd.get()) != 0 ||
                  ::rename(temporary.c_str(), path.c_str()) != 0)) {
    written = WriteError(path);
  }
  if (!written) ::unlink(temporary.c_str());
  return written;
}

Result<void> CheckWritable(const std::string& path) {
  if (!IsRegularOrAbsent(path)) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    // A pipe that nobody reads yet may find a reader.
    return fd.valid() || errno == ENXIO ? Result<void>() : WriteError(path);
  }
  std::string temporary = path;
  const UniqueFd fd = MakeTemporary(temporary);
  if (!fd.valid()) return WriteError(path);
  ::unlink(temporary.c_str());
  return {};
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  auto file = OpenRegular(path);
  if (!file) return Forward(file);
  MappedFile mapped;
  mapped.path_ = path;
  if (file->size == 0) return mapped;
  void* address = ::mmap(nullptr, file->size, PROT_READ, MAP_SHARED, file->fd.get(), 0);
  if (address == MAP_FAILED) {
    return Fail(ErrorKind::kIo, "cannot map '{}': {}", path, std::strerror(errno));
  }
  mapped.bytes_ = {static_cast<const std::byte*>(address), file->size};
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::ReleasePages(std::size_t offset, std::size_t size) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  offset = std::min(offset, bytes_.size());
  const std::size_t end = (offset + std::min(size, bytes_.size() - offset)) / page * page;
  const std::size_t begin = (offset + page - 1) / page * page;
  if (begin >= end) return;
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace base
