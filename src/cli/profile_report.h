// Routing profiles as commands read, write and show them. One thread.
#pragma once

#include <string>

#include "base/result.h"
#include "cli/command.h"
#include "cli/output.h"
#include "moe/plan/model_shape.h"
#include "moe/profile/profile.h"

namespace cli {

// The profile in the file `path`, for `model`; logs a note when it is of another quantisation.
// Errors: kCorruptModel, naming the file, when it cannot be read or is of another model.
base::Result<moe::RoutingProfile> ReadProfile(const Session& session, const std::string& path,
                                              const moe::ModelIdentity& model);

// Writes the file and says so. Errors: as moe::WriteProfileFile.
base::Result<void> WriteProfile(const Session& session, const moe::RoutingProfile& profile,
                                const std::string& path);

// One line: how much traffic the hottest quarter draws, beside a uniform router; a warning when the
// profile says nothing beyond that.
void LogGain(const Session& session, const moe::RoutingProfile& profile);

// Everything about the profile: model, tokens, and each layer's figures beside a uniform router's.
Json ProfileJson(const moe::RoutingProfile& profile);
// The same for people.
std::string ProfileTable(const moe::RoutingProfile& profile);

}  // namespace cli
