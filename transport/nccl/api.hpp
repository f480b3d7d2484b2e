// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <span>
#include <string>

// The part of NCCL 2.18 that is used, declared here so that building needs no NCCL: the library is loaded on first use.
// Newer versions accept the older settings structure, which contains its size and version.
namespace shardwire::transport::nccl {

enum Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

inline constexpr int type_of_bytes = 1;  // ncclUint8
inline constexpr int min_version = 21800;

struct Communicator;  // ncclComm
struct UniqueId {
  std::array<char, 128> bytes{};
};
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = min_version;
  int blocking = INT_MIN;  // these stand for "as you like"
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

/// The functions of one library: the loaded one, or a fake.
struct Api {
  int (*version)(int* version) = nullptr;
  int (*unique_id)(UniqueId* id) = nullptr;
  int (*init)(Communicator** communicator, int size, UniqueId id, int rank, Config* config) = nullptr;
  int (*finalize)(Communicator* communicator) = nullptr;
  int (*destroy)(Communicator* communicator) = nullptr;
  int (*abort)(Communicator* communicator) = nullptr;
  int (*async_error)(Communicator* communicator, int* state) = nullptr;
  int (*count)(Communicator* communicator, int* count) = nullptr;
  int (*user_rank)(Communicator* communicator, int* rank) = nullptr;
  int (*device)(Communicator* communicator, int* device) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* from, std::size_t count, int type, int peer, Communicator* communicator,
              void* stream) = nullptr;
  int (*receive)(void* into, std::size_t count, int type, int peer, Communicator* communicator, void* stream) = nullptr;
  const char* (*error_string)(int result) = nullptr;
  const char* (*last_error)(Communicator* communicator) = nullptr;
};

struct FoundApi {
  const Api* api = nullptr;  ///< lives until the process ends
  std::string why_not{};
};
/// Loads libnccl.so.2 on the first call; it stays loaded.
FoundApi find_api();
/// For tests: uses this library from now on; null: the one that was found.
void use_api(const Api* api);
/// Why a communicator created by other code in this process may belong to another library than that of find_api().
/// Empty: it belongs to the same one. `loaded`: the files of all libraries of this process. `loaded_before`: the
/// library was loaded before find_api().
std::string doubt_about_library(std::span<const std::string> loaded, bool loaded_before);
/// The same for this process.
std::string doubt_about_library();
/// For tests: the same for any file.
FoundApi load_api(const char* file);
/// "2.18.3" for 21803.
std::string version_text(int version);

}  // namespace shardwire::transport::nccl
