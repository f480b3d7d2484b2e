// SPDX-License-Identifier: Apache-2.0
#include "cli/run_pipe.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "cli/text.hpp"

namespace shardwire::cli {

MemberPipe::MemberPipe(int descriptor, std::mutex& writing, int member)
    : descriptor_(descriptor), writing_(writing), member_(member) {
  ::fcntl(descriptor_, F_SETFL, O_NONBLOCK);
}

void MemberPipe::progress(const MemberProgress& progress) {
  const auto now = std::chrono::steady_clock::now();
  const std::unique_lock lock(writing_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const bool same = last_phase_ == progress.phase && last_repeat_ == progress.repeat;
  if (same && now - last_ < std::chrono::milliseconds(100) && progress.done_bytes != progress.total_bytes) return;
  last_ = now;
  last_phase_ = progress.phase;
  last_repeat_ = progress.repeat;
  const std::string line =
      fmt::format("{{\"member\":{},\"phase\":\"{}\",\"repeat\":{},\"done\":{},\"total\":{}}}\n", member_,
                  progress.phase, progress.repeat, progress.done_bytes, progress.total_bytes);
  // Shorter than PIPE_BUF: written whole or not at all.
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, line.data(), line.size());
}

void MemberPipe::note(std::string_view key, std::string_view text) {
  constexpr std::size_t max_text = 400;  // with escapes shorter than PIPE_BUF
  const std::string line =
      fmt::format("{{\"member\":{},\"{}\":{}}}\n", member_, key, json_text(text.substr(0, max_text)));
  const std::unique_lock lock(writing_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  [[maybe_unused]] const ssize_t written = ::write(descriptor_, line.data(), line.size());
}

void MemberPipe::result(const MemberResult& result) {
  write_result(result, [this](const std::string& text) {
    const std::lock_guard lock(writing_);
    write_all(text + "\n");
  });
}

void MemberPipe::event(std::string_view fields) {
  const std::lock_guard lock(writing_);
  write_all(fmt::format("{{\"member\":{},{}}}\n", member_, fields));
}

void MemberPipe::write_all(std::string_view line) {
  while (!line.empty()) {
    const ssize_t written = ::write(descriptor_, line.data(), line.size());
    if (written > 0) {
      line.remove_prefix(static_cast<std::size_t>(written));
      continue;
    }
    if (written < 0 && errno != EAGAIN && errno != EINTR)
      return;  // the command has gone, and this process exits with it
    pollfd one{descriptor_, POLLOUT, 0};
    ::poll(&one, 1, -1);
  }
}

}  // namespace shardwire::cli
