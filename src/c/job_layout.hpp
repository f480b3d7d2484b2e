// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "shardwire/c/plan.h"
#include "shardwire/plan.hpp"

namespace shardwire::c_api {

/// A job layout whose sections can still grow; a JobLayout's manifests cannot.
struct JobDraft {
  struct Section {
    std::vector<std::int32_t> ranks;  ///< ascending
    Manifest manifest;
  };
  int ranks = 0;
  std::vector<Section> sections{};
  std::vector<std::int32_t> copies{};
};

JobDraft draft_of(const JobLayout& job);
JobLayout job_of(const JobDraft& draft);

}  // namespace shardwire::c_api
