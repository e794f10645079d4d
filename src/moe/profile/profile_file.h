// Routing profiles as files: docs/profile_file.md has the grammar and an example. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "moe/profile/profile.h"

namespace moe {

inline constexpr std::string_view kProfileFileFormat = "expert-split-profile";
inline constexpr std::uint64_t kProfileFileVersion = 1;
// Layers times experts that a profile file may state.
inline constexpr std::uint64_t kMaxProfileUnits = 1 << 22;

// The file's content. The same profile gives the same bytes.
std::string PrintProfileFile(const RoutingProfile& profile);

// Errors: as base::WriteFileAtomically.
base::Result<void> WriteProfileFile(const RoutingProfile& profile, const std::string& path);

// Errors: kCorruptModel, one line naming file, field and remedy, when the file is missing, too
// large, not JSON, of another format or version, lacks a field, has one of a wrong type, count or
// range, or counts that contradict its number of tokens. Which model it is for is not checked here
// (CheckProfileModel).
base::Result<RoutingProfile> ReadProfileFile(const std::string& path);

// The same for content in memory; `path` is used in messages only.
base::Result<RoutingProfile> ParseProfileFile(std::string_view text, const std::string& path);

}  // namespace moe
