// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <string>

#include "geometry/shared_value.hpp"
#include "shardwire/tensor.hpp"

namespace shardwire::restore {

class Source;

enum class Stage : std::uint8_t { plan, bind, move, verify, commit, stopping, done, failed };
constexpr const char* name_of(Stage stage) {
  constexpr const char* names[] = {"plan", "bind", "move", "verify", "commit", "stopping", "done", "failed"};
  return names[static_cast<std::size_t>(stage)];
}
/// Sources are bound or read.
constexpr bool reads(Stage stage) {
  return stage == Stage::bind || stage == Stage::move || stage == Stage::verify;
}

/// Fate of the path of one source's bytes; the source itself may be well.
enum class PathLoss : std::uint8_t {
  aborted,  ///< the connection was aborted on this side, by another operation
  ended,    ///< the payload connection has ended, but the source is alive
  refused,  ///< a fabric stopped reading: this or other memory of the source may have been withdrawn
};

/// The operation around the parts of a restore. It alone decides whether a failure leads to another plan or to the end.
/// Threads: loop thread only.
class Owner {
 public:
  /// The restore enters this stage.
  virtual void on_stage(Stage stage) = 0;
  virtual void on_failed(const std::exception_ptr& error) = 0;
  /// All values have arrived. False: the restore has to stand until Restore::proceed().
  virtual bool on_values(const std::map<TensorKey, SharedValue>& values) = 0;
  /// The restore cannot continue without this source, which is lost or has withdrawn its publication.
  virtual void on_source_ended(const Source& source, const std::exception_ptr& error) = 0;
  virtual void on_path_lost(Source& source, PathLoss loss, const std::string& why) = 0;
  /// While the restore stops: an activity that may have written the destination has ended.
  virtual void on_quieter() = 0;
  /// All bytes are in place, and the caller's events are recorded.
  virtual void on_done() = 0;

 protected:
  ~Owner() = default;
};

}  // namespace shardwire::restore
