// SPDX-License-Identifier: Apache-2.0
#include "cli/fault_agent.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "cli/slow_fabric.hpp"

namespace shardwire::cli {
namespace {

struct Socket {
  int descriptor = -1;
  ino_t inode = 0;
};

// The stream sockets of this process.
std::vector<Socket> stream_sockets() {
  std::vector<Socket> found;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return found;
  while (const dirent* const entry = ::readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    struct stat status {};
    if (entry->d_name[0] == '.' || ::fstat(descriptor, &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
    int type = 0;
    socklen_t size = sizeof type;
    if (::getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type == SOCK_DGRAM) continue;
    found.push_back({descriptor, status.st_ino});
  }
  ::closedir(folder);
  return found;
}

bool listens(int descriptor) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

// Puts a listener that nobody knows in the place of this one: its owner goes on to wait, and newcomers are refused.
void replace_listener(int descriptor) {
  const int unknown = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (unknown < 0) return;
  const sa_family_t family = AF_UNIX;  // the kernel chooses an abstract name
  if (::bind(unknown, reinterpret_cast<const sockaddr*>(&family), sizeof family) == 0 && ::listen(unknown, 1) == 0) {
    ::dup3(unknown, descriptor, O_CLOEXEC);
  }
  ::close(unknown);
}

std::optional<char> read_byte(int descriptor) {
  char byte = 0;
  ssize_t got = 0;
  do {
    got = ::read(descriptor, &byte, 1);
  } while (got < 0 && errno == EINTR);
  return got == 1 ? std::optional(byte) : std::nullopt;
}

}  // namespace

FaultAgent::FaultAgent(MemberPipe& pipe, const MemberEnds& ends, std::span<const Fault> faults)
    : pipe_(pipe), ends_(ends) {
  const auto entered = [this](restore::Stage stage) {
    ask(fmt::format(R"("repeat":{},"entered":"{}")", repeat_.load(), restore::name_of(stage)));
  };
  const auto arrived = [this](ByteCount bytes) {
    ask(fmt::format(R"("repeat":{},"arrived":{})", repeat_.load(), bytes));
  };
  const auto spoils = [this](Rank source) {
    return spoilt_.contains(source) && ask(fmt::format(R"("delivered_by":{})", to_int(source))) == FaultByte::spoil;
  };
  probe_ = {entered, arrived, spoils};
  for (const Fault& fault : faults) {
    if (fault.kind == FaultKind::corrupt) spoilt_.insert(fault.rank);
  }
  for (const Socket& socket : stream_sockets()) not_ours_.insert(socket.inode);
  commands_ = std::thread([this] { obey(); });
}

FaultAgent::~FaultAgent() {
  ending_.signal();
  commands_.join();
}

detail::Surroundings FaultAgent::surroundings() {
  detail::Surroundings surroundings = detail::surroundings_of_process();
  surroundings.probe = &probe_;
  surroundings.open_fabrics = [this, open = std::move(surroundings.open_fabrics)](const auto&... arguments) {
    auto fabrics = open(arguments...);
    fabrics->wrap([this](std::unique_ptr<transport::Fabric> one) { return slowable(std::move(one), slow_); });
    return fabrics;
  };
  return surroundings;
}

void FaultAgent::begin(int repeat, std::function<void()> restep) {
  {
    const std::lock_guard lock(mutex_);
    repeat_ = repeat;
    restep_ = std::move(restep);
  }
  pipe_.event(fmt::format(R"("repeat":{},"begun":true)", repeat));
}

void FaultAgent::end() {
  ask(fmt::format(R"("repeat":{},"restored":true)", repeat_.load()));
  const std::lock_guard lock(mutex_);
  restep_ = nullptr;
}

// --- events ---

FaultByte FaultAgent::ask(const std::string& event) {
  pipe_.event(event);
  const auto reply = read_byte(ends_.replies);
  return reply ? static_cast<FaultByte>(*reply) : FaultByte::go_on;  // the command has gone, and so does this process
}

// --- faults ---

void FaultAgent::obey() {
  while (true) {
    pollfd fds[] = {{ends_.commands, POLLIN, 0}, {ending_.descriptor(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (fds[0].revents == 0) continue;
    const auto command = read_byte(ends_.commands);
    if (!command) return;
    strike(static_cast<FaultByte>(*command));
  }
}

void FaultAgent::strike(FaultByte command) {
  if (command == FaultByte::cut) cut();
  if (command == FaultByte::slow) slow_ = true;
  // Before the next step, which waits for the session's thread: that may wait for a reply to an event.
  pipe_.event(R"("struck":true)");
  if (command != FaultByte::restep) return;
  const std::lock_guard lock(mutex_);
  if (restep_) restep_();
}

void FaultAgent::cut() const {
  for (const Socket& socket : stream_sockets()) {
    if (not_ours_.contains(socket.inode)) continue;
    listens(socket.descriptor) ? replace_listener(socket.descriptor)
                               : static_cast<void>(::shutdown(socket.descriptor, SHUT_RDWR));
  }
}

}  // namespace shardwire::cli
