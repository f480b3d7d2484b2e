// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "support/environment.hpp"

namespace shardwire::test {

/// During its lifetime, the environment has these variables and no others of launchers or of the library.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& wanted) {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "TORCHELASTIC_RUN_ID",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "PMIX_NAMESPACE",
                             "PMIX_RANK",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_JOB_ID",
                             "SLURM_STEP_ID",
                             "SLURM_NNODES",
                             "SLURM_JOB_NUM_NODES",
                             "SLURM_STEP_NUM_NODES"}) {
      clear(name);
    }
    for (const std::string_view name : support::known_variables()) clear(std::string(name));
    for (const auto& [name, value] : wanted) {
      clear(name);
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  void clear(const std::string& name) {
    if (const char* value = std::getenv(name.c_str())) before_[name] = value;
    ::unsetenv(name.c_str());
    names_.push_back(name);
  }

  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

}  // namespace shardwire::test
