// Whole files in, whole files out, and read-only mappings. Any thread; values and move-only owners.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/result.h"

namespace base {

// The file's content. Errors: kIo when it cannot be opened or read, is not a regular file, or holds
// more than `limit`; the message names the path and the reason.
Result<std::string> ReadFile(const std::string& path, Bytes limit);

// Writes `content` to a temporary name beside `path`, flushes it to the device and renames it, so
// that `path` is the old file or the whole new one and never a part. A `path` that is no regular
// file (a link, a device, a pipe) is written in place. Errors, naming the path: kInvalidInput when
// no file can be made there (no such folder, no permission, a folder); kIo when writing fails.
Result<void> WriteFileAtomically(const std::string& path, std::string_view content);

// Whether WriteFileAtomically can make a file at `path` now, so that work whose result belongs
// there is not in vain. Leaves everything as it was. Errors: kInvalidInput and kIo as there.
Result<void> CheckWritable(const std::string& path);

// A regular file mapped read-only, nothing of it populated. The address stays the same when the
// owner is moved. A file that somebody truncates afterwards faults on access (SIGBUS), as with any
// mapping.
class MappedFile {
 public:
  // Errors: kIo when the file is missing, unreadable, not regular or cannot be mapped.
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // [file size] bytes at a page-aligned address; empty for an empty file.
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

  // Gives the resident pages that lie wholly inside [offset, offset + size) back to the kernel;
  // a later access reads them from the file again. Out-of-range parts are ignored.
  void ReleasePages(std::size_t offset, std::size_t size) const;

 private:
  std::span<const std::byte> bytes_;
  std::string path_;
};

}  // namespace base
