// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/job.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "perf/measure/member.hpp"
#include "support/stderr.hpp"

namespace shardwire::perf {

namespace {

constexpr std::chrono::seconds farewell{10};

// A folder that is removed with this object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "shardwire-perf-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    folder_.path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_.path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const MpiFolder& folder() const { return folder_; }

 private:
  MpiFolder folder_;
};

// How member 0 returns all results: an anonymous file, which outlives the child that writes it.
class Handover {
 public:
  Handover() : file_(::memfd_create("shardwire-perf", 0)) {
    if (file_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  }
  ~Handover() { ::close(file_); }
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  void write(const std::vector<MemberFacts>& members) const {
    nlohmann::json json = nlohmann::json::array();
    for (const MemberFacts& member : members) json.push_back(to_json(member));
    const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t wrote = ::write(file_, text.data() + at, text.size() - at);
      if (wrote < 0) throw std::system_error(errno, std::generic_category(), "hand over results");
      at += static_cast<std::size_t>(wrote);
    }
  }
  [[nodiscard]] std::vector<MemberFacts> read() const {
    std::string text(static_cast<std::size_t>(::lseek(file_, 0, SEEK_END)), ' ');
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t got = ::pread(file_, text.data() + at, text.size() - at, static_cast<off_t>(at));
      if (got <= 0) throw std::runtime_error("results were not handed over");
      at += static_cast<std::size_t>(got);
    }
    std::vector<MemberFacts> members;
    for (const auto& one : nlohmann::json::parse(text)) members.push_back(member_facts_from(one));
    return members;
  }

 private:
  int file_;
};

// Member 0 serves the rendezvous, so all leave together.
void leave(Session& session) {
  session.gather("perf end", {}, farewell);
  session.close(farewell);
}

void be_member(const Setup& setup, Bootstrap bootstrap, Barrier& barrier, const Handover& handover, MemberRole role,
               std::atomic<ByteCount>& done_bytes) {
  bootstrap.rank = role.member;
  Session session = join(setup, std::move(bootstrap));
  BarrierMeeting meeting(barrier);
  const auto members = take_turns(setup, session, meeting, role, [&](ByteCount bytes) { done_bytes += bytes; });
  if (role.member == 0) handover.write(members);
  leave(session);
}

// All members as threads: if one fails, the whole process fails.
void be_all_members(const Setup& setup, const Bootstrap& bootstrap, Barrier& barrier, const Handover& handover,
                    std::atomic<ByteCount>& done_bytes) {
  std::vector<std::jthread> threads;
  for (int member = 0; member < bootstrap.world_size; ++member) {
    threads.emplace_back([&, member] {
      try {
        be_member(setup, bootstrap, barrier, handover, {member, false}, done_bytes);
      } catch (const std::exception& error) {
        support::write_stderr("shardwire: member {}: {}\n", member, error.what());
        std::fflush(nullptr);
        ::_exit(1);
      }
    });
  }
}

[[noreturn]] void start_mpi(const Setup& setup, const std::string& program, const MpiFolder& folder) {
  std::vector<std::string> words{"mpirun", "--oversubscribe", "--bind-to", "none"};
  const auto add = [&](std::initializer_list<const char*> more) {
    words.insert(words.end(), more.begin(), more.end());
  };
  if (::geteuid() == 0) add({"--allow-run-as-root"});
  add({"--mca", "pml", "ob1"});
  if (setup.tcp) {
    add({"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"});
  } else {
    add({"--mca", "btl", "vader,self"});
  }
  words.insert(words.end(), {"-np", std::to_string(setup.members()), program, folder.path});
  std::vector<char*> raw;
  for (std::string& word : words) raw.push_back(word.data());
  raw.push_back(nullptr);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output carries only rows
  std::signal(SIGPIPE, SIG_DFL);
  ::execvp(raw.front(), raw.data());
  throw std::system_error(errno, std::generic_category(), "start mpirun");
}

}  // namespace

Outcome run_here(const Setup& setup, const Bootstrap& bootstrap, const std::string& mpi_program, const Watch& watch,
                 const OnProgress& progress) {
  const bool mpi = setup.has(Against::mpi);
  std::optional<TemporaryFolder> files;
  std::shared_ptr<void> pages;  // owners: this and, as a mapping, every child
  if (mpi) {
    files.emplace();
    write_order(files->folder(), setup);
    pages = shared_file_pages(files->folder().barrier(), sizeof(Barrier));
  } else {
    pages = shared_pages(sizeof(Barrier));
  }
  auto& barrier = *new (pages.get()) Barrier;
  const int members = setup.members();
  const bool threads = setup.transport == "loopback";
  const auto counter = shared_pages(sizeof(std::atomic<ByteCount>));  // owners: this and, as a mapping, every child
  auto& done_bytes = *new (counter.get()) std::atomic<ByteCount>;
  barrier.open(members * (mpi ? 2 : 1));
  const Handover handover;
  std::vector<Child> children;
  if (threads) {
    children.push_back(
        {"the process of all members", [&] { be_all_members(setup, bootstrap, barrier, handover, done_bytes); }});
  }
  for (int member = 0; member < members && !threads; ++member) {
    children.push_back({fmt::format("member {}", member), [&, member] {
                          be_member(setup, bootstrap, barrier, handover, {member, true}, done_bytes);
                        }});
  }
  if (mpi) {
    children.push_back({"mpirun", [&] { start_mpi(setup, mpi_program, files->folder()); }, SIGTERM});
  }
  run_children(children, setup.timeout, watch, [&] { progress(done_bytes); });
  Outcome outcome{handover.read(), std::nullopt};
  if (mpi) outcome.mpi = read_facts(files->folder());
  return outcome;
}

std::optional<Outcome> run_launched(const Setup& setup, const Bootstrap& bootstrap, const OnProgress& progress) {
  Session session = join(setup, bootstrap);
  SessionMeeting meeting(session, setup.timeout);
  ByteCount done_bytes = 0;
  if (bootstrap.rank == 0) progress(0);
  auto members = take_turns(setup, session, meeting, {bootstrap.rank, true},
                            [&](ByteCount bytes) { progress(done_bytes += bytes); });
  leave(session);
  if (bootstrap.rank != 0) return std::nullopt;
  return Outcome{std::move(members), std::nullopt, false};
}

}  // namespace shardwire::perf
