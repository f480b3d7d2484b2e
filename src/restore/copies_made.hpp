// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "restore/question.hpp"
#include "runtime/clock.hpp"

namespace shardwire::restore {

/// Waits until members that copy a publication have said that they are done with a step, or are not there any more. They say
/// it by a publication of nothing, of their rank, under a name of its own.
/// Threads: loop thread only.
class CopiesMade final : public Question {
 public:
  struct Request {
    std::string name;  ///< of what is copied
    std::int64_t step = 0;
    std::vector<int> members;
    Duration timeout{};
  };
  using Done = std::function<void(const std::exception_ptr&)>;

  /// The name under which members say what they have copied of publications of `name`.
  static std::string name_for(const std::string& name);

  /// `done` runs once. Its error names the members that were waited for.
  CopiesMade(const Context& context, Request request, Done done);

  void start() override;

 private:
  [[nodiscard]] std::vector<int> awaited() const;
  void look() override;
  void fail(const std::exception_ptr& error) override { end(error); }
  [[nodiscard]] bool answered() const override { return !done_; }
  void end(const std::exception_ptr& error);

  Request request_;
  Done done_;  // empty once it ran
  Timer timer_;
};

}  // namespace shardwire::restore
