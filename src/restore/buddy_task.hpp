// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "restore/descriptions.hpp"
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
  void timed_out() override;
  [[nodiscard]] bool answered() const override { return !done_; }
  void end(const std::exception_ptr& error);

  Request request_;
  Done done_;  // empty once it ran
};

/// Finds the publications of other hosts that this member is to copy, once all ranks have published a step: follows the
/// roster of the name, asks for the addresses of its publishers, which tell their failure domains, and fetches the
/// descriptions of what is to be copied.
/// Threads: loop thread only.
class BuddyTask final : public Question {
 public:
  struct Request {
    std::string name;
    std::int64_t step = 0;
    int layout_rank = 0;  ///< of this member
    int ranks = 0;        ///< of the layouts
    int copies = 0;       ///< of each rank
    Duration patience{};  ///< with ranks that have not published; after it they are left out
    Duration timeout{};
  };
  struct Copy {
    wire::PublicationRecord record;
    std::shared_ptr<const Manifest> manifest;        // owners: see Metadata
    std::shared_ptr<const Metadata::Values> values;  // likewise
  };
  struct Found {
    std::vector<Copy> copies;
    std::vector<int>
        missed;  ///< ranks that do not publish the step: those that were to be copied here, and absent ones
    std::vector<int> holders;  ///< members that copy what this one publishes
    int domains = 0;
    std::vector<int> publishers;  ///< members, of all ranks
  };
  using Done = std::function<void(Found, const std::exception_ptr&)>;

  /// `done` runs once.
  BuddyTask(const Context& context, Request request, Done done);

  void start() override;
  void addresses_came() override { directory_changed(); }

 private:
  using Records = Descriptions::Records;

  /// By rank; of members of the job, in this session.
  [[nodiscard]] Records one_of_each_rank(Records records) const;
  [[nodiscard]] Records published() const;
  /// In place of a publication of the step that is not there any more, what its member said once it was done with it.
  [[nodiscard]] Records with_those_done(Records all) const;
  void look() override;
  void fail(const std::exception_ptr& error) override { end({}, error); }
  void timed_out() override;
  [[nodiscard]] bool answered() const override { return !done_; }
  void end(Found found, const std::exception_ptr& error);

  Request request_;
  Done done_;  // empty once it ran
  bool patient_ = true;
  RosterView said_;  // what members are done with
  Descriptions descriptions_;
  Timer patience_;
};

}  // namespace shardwire::restore
