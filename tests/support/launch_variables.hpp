// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

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
                             "SLURM_STEP_NUM_NODES",
                             "SHARDWIRE_TRANSPORT",
                             "SHARDWIRE_STAGING_BYTES",
                             "SHARDWIRE_JOB_KEY_FILE",
                             "SHARDWIRE_RUN_ID",
                             "SHARDWIRE_PORT",
                             "SHARDWIRE_INTERFACE",
                             "SHARDWIRE_METHOD",
                             "SHARDWIRE_LOG",
                             "SHARDWIRE_LOG_FORMAT",
                             "SHARDWIRE_CALIBRATION",
                             "SHARDWIRE_JOIN_TIMEOUT",
                             "SHARDWIRE_COPY_KERNEL",
                             "SHARDWIRE_TCP_STREAMS",
                             "SHARDWIRE_METRICS_FOLDER",
                             "SHARDWIRE_METRICS_PORT",
                             "SHARDWIRE_METRICS_ADDRESS",
                             "SHARDWIRE_TRACE",
                             "SHARDWIRE_TRANSPROT"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
      names_.emplace_back(name);
    }
    for (const auto& [name, value] : wanted) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

}  // namespace shardwire::test
