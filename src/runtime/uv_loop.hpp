// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <uv.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/loop.hpp"

namespace shardwire {

/// A libuv loop on a thread of its own.
class UvLoop final : public Loop {
 public:
  UvLoop();
  /// Calls end(), unless it was called before.
  ~UvLoop() override;
  UvLoop(const UvLoop&) = delete;
  UvLoop& operator=(const UvLoop&) = delete;

  using Loop::end;
  void end(std::function<void()> last) override;
  void post(std::function<void()> task) override;
  [[nodiscard]] bool is_current() const override { return std::this_thread::get_id() == id_; }
  [[nodiscard]] Time now() const override { return std::chrono::steady_clock::now(); }
  /// Delays are rounded up to milliseconds.
  std::unique_ptr<Alarm> make_alarm() override;
  void fill_random(std::span<std::byte> into) override;
  std::shared_ptr<Stream> connect(const SocketAddress& to, Stream::Events events) override;
  /// The name is one of unix(7), abstract, without the leading zero byte: each network namespace has its own.
  std::shared_ptr<Stream> connect_local(const std::string& name, Stream::Events events) override;
  std::unique_ptr<Listener> listen(const SocketAddress& at, Incoming incoming) override;
  std::unique_ptr<Listener> listen_local(const std::string& name, Incoming incoming) override;
  [[nodiscard]] std::string interface_of(const std::string& address) const override {
    return shardwire::interface_of(address);
  }
  [[nodiscard]] unsigned copy_threads(unsigned wanted) const override { return wanted; }
  std::unique_ptr<Polling> poll(std::function<void()> task) override;

  [[nodiscard]] uv_loop_t* raw() { return &loop_; }
  /// Read buffer shared by the streams of this loop. Its bytes are valid until the reader's callback returns: libuv
  /// reads one stream after the other.
  static uv_buf_t input_of(const uv_loop_t& loop);

 private:
  void run();
  void drain();

  uv_loop_t loop_{};
  std::vector<char> input_;  // loop thread only
  uv_async_t wake_{};
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;  // guarded by mutex_
  bool ended_ = false;                        // likewise
  bool stopping_ = false;                     // loop thread only
  std::thread thread_;
  std::thread::id id_;  // of thread_, also after it has ended
};

}  // namespace shardwire
