// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "endings.hpp"
#include "fabric.hpp"
#include "groups.hpp"
#include "handles/session_state.hpp"
#include "network.hpp"
#include "schedule.hpp"

namespace shardwire::simulation {

/// Who holds the elements of one tensor.
struct Holders {
  std::vector<std::vector<int>> sets{};  ///< of members
  std::vector<std::size_t> set_of{};     ///< by element: index into `sets`
};

/// The state that all members of a run share.
struct Job {
  const Schedule& schedule;
  Events& events;
  Network& network;
  FabricNetwork& fabrics;
  GroupNetwork& groups;
  std::vector<std::string>& failures;
  bool logs = false;
  bool fails_over = false;
  std::vector<bool> published{};      ///< by member
  std::map<int, Clock::Time> told{};  ///< by exchange: when the first member learnt that it was given up
  std::uint64_t restores = 0;
  std::uint64_t avoidable = 0;  ///< see Findings
  std::vector<Ending> endings{};
  std::vector<std::weak_ptr<void>> owners{};  ///< of all memory that sessions were given
  std::vector<Holders> holders{};             ///< by tensor, once a restore has been checked

  void fail(const std::string& what);
};

/// Waits until the library has released all of these, which it does on a thread of its own, and returns how many it has not.
std::size_t count_kept(const std::vector<std::weak_ptr<void>>& owners);

/// A call of a member that has to end in time.
struct Call {
  std::string what;
  Clock::Time begun;
  Duration stopped_before{};  // time for which the process had been stopped at the beginning
  Duration limit{};
  bool ended = false;
};

/// A buffer of a caller, with guards around it.
class Buffer {
 public:
  /// `arena`: null for memory of the caller.
  Buffer(ByteCount bytes, std::shared_ptr<shardwire::detail::RegisteredMemory> arena);
  [[nodiscard]] std::span<std::byte> bytes();
  void fill(std::byte value);
  [[nodiscard]] bool is_all(std::byte value);
  [[nodiscard]] bool guards_intact() const;

 private:
  ByteCount bytes_;
  std::shared_ptr<shardwire::detail::RegisteredMemory> arena_;  // owners: see RegisteredMemory
  std::vector<std::byte> plain_;
};

/// One process of the job with its session: does what the schedule says, and checks what comes of it.
class Member {
 public:
  Member(Job& job, Process& process, int member, std::uint64_t incarnation);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  /// Runs in the process. Before the session has joined, all but joining waits for that.
  void act(const Action& action);
  /// The process ends without a word.
  void end(bool silent);

  [[nodiscard]] bool alive() const { return session_ != nullptr; }
  [[nodiscard]] Process& process() { return process_; }

  // --- the end of a run, in this order, with time in between ---

  /// Every call has ended in time, and nothing is kept.
  void check_quiet();
  void retire_all();
  void close();

 private:
  struct Tensors;
  struct Published;
  struct Destination;
  struct Exchanged;

  void join();
  void joined(const std::exception_ptr& error);
  void publish(int step);
  void update(int step);
  void retire();
  void leave();
  void restore();
  void exchange(int number);
  void gather(int number);
  void take_inventory();
  void cancel();

  /// `owner`: of all its memory.
  Catalog catalog_of(bool held, std::vector<std::shared_ptr<Buffer>>& buffers, Schedule::Memory memory, int step,
                     std::shared_ptr<void> owner);
  std::shared_ptr<void> new_owner();
  std::shared_ptr<Buffer> buffer_for(const Layout& layout, const TensorSpec& spec, int rank, Schedule::Memory memory);
  void watch_retirement(const std::shared_ptr<Published>& published,
                        const shardwire::detail::SessionState::Retirement& retirement);
  bool resumes(const std::shared_ptr<Destination>& destination);
  void note_ending(const Destination& destination, const Call& call, bool completed);
  void restored_for_good(const std::shared_ptr<Destination>& destination);
  void restored(const std::shared_ptr<Destination>& destination, const std::shared_ptr<Call>& call);
  void check(Destination& destination);
  std::shared_ptr<Exchanged> make_exchange(int step);
  void exchanged(const std::shared_ptr<Exchanged>& exchange, const std::shared_ptr<Call>& call, int number);
  void check(Exchanged& exchange);
  void check_told(int number, const std::string& text);
  /// Runs `body` on a thread of the process. `fails`: an error is a fault of the library.
  void in_thread(std::string what, Duration limit, bool fails, std::function<std::string()> body);
  void failed(const std::string& what, const std::exception_ptr& error, bool fails);
  std::shared_ptr<Call> begin(std::string what, Duration limit);
  void ended(Call& call);
  void say(const std::string& what);

  Job& job_;
  Process& process_;
  int member_;
  std::vector<std::weak_ptr<void>> returned_;                 // owners of memory that is the caller's again
  std::shared_ptr<shardwire::detail::SessionState> session_;  // owners: this and its publications
  bool joined_ = false;
  bool refused_ = false;
  bool left_ = false;
  std::vector<Action> waiting_;  // for the session to join
  std::vector<std::shared_ptr<Call>> calls_;
  std::shared_ptr<Published> published_;
  std::vector<std::shared_ptr<Published>> retiring_;
  std::vector<std::shared_ptr<Destination>> destinations_;
  std::vector<std::shared_ptr<Exchanged>> exchanges_;
};

}  // namespace shardwire::simulation
