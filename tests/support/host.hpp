// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/command.hpp"

namespace shardwire::test {

/// Processes that a launcher starts on one simulated host: they have their own namespaces for mounts, processes, IPC
/// and /dev/shm. Each ends within 90 s.
struct Host {
  std::string network;               ///< a network namespace; empty: this one
  std::string shared_memory = "1G";  ///< size of /dev/shm
  bool containers = false;           ///< every rank has its own of all these, except the network
  std::vector<int> ranks;

  /// The command line that runs `words` as each of the ranks; exits 0 if all ranks did.
  [[nodiscard]] std::vector<std::string> command(const std::vector<std::string>& words) const {
    const std::string apart = "unshare --mount --propagation private --ipc --pid --fork --kill-child --mount-proc";
    const std::string mount = "mount -t tmpfs -o size=" + shared_memory + " tmpfs /dev/shm || exit 99; ";
    const std::string container = apart + " /bin/sh -c '" + mount + "exec \"$0\" \"$@\"' ";
    std::string list;
    for (const int rank : ranks) list += " " + std::to_string(rank);
    const std::string script = mount + "pids=; for rank in" + list + "; do RANK=$rank timeout -k 1 90 " +
                               (containers ? container : "") +
                               "\"$0\" \"$@\" & pids=\"$pids $!\"; done; code=0; for pid in $pids; do wait $pid || "
                               "code=$?; done; exit $code";
    std::vector<std::string> result{"/usr/bin/env"};
    if (!network.empty()) result.insert(result.end(), {"ip", "netns", "exec", network});
    result.insert(result.end(), {"/bin/sh", "-c", "exec " + apart + " \"$0\" \"$@\"", "/bin/sh", "-c", script});
    result.insert(result.end(), words.begin(), words.end());
    return result;
  }
};

/// Whether such hosts can be made here; if not, the reason.
inline std::pair<bool, std::string> can_make_hosts() {
  const Host host{.network = {}, .containers = true, .ranks = {0}};
  const CommandResult result = RunningCommand(host.command({"/bin/true"})).wait();
  return {result.exit_code == 0, "namespaces of its own cannot be made here: " + result.err};
}

}  // namespace shardwire::test
