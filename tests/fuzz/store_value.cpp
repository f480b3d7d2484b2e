// SPDX-License-Identifier: Apache-2.0
// The addresses of member 0 in the job's key-value store.
#include <arpa/inet.h>

#include "control/stored_rendezvous.hpp"
#include "fuzz/target.hpp"

namespace shardwire::fuzz {

namespace {

class MadeStore final : public KeyValueStore {
 public:
  explicit MadeStore(Bytes value) : value_(std::move(value)) {}
  void put(const std::string&, const Bytes& value) override { value_ = value; }
  std::optional<Bytes> get(const std::string&, std::chrono::nanoseconds) override { return value_; }

 private:
  Bytes value_;
};

}  // namespace

void store_value(Input input) {
  constexpr Duration any_time = std::chrono::seconds(1);
  const Bootstrap bootstrap{
      .rank = 1, .world_size = 2, .store = std::make_shared<MadeStore>(Bytes(input.begin(), input.end()))};
  const Interruption never;
  StoredRendezvous rendezvous(bootstrap, never);
  const auto contact = accepted([&] { return rendezvous.wait(any_time, any_time); });
  if (!contact) return;
  require(!contact->addresses.empty(), "an accepted value has an address");
  for (const SocketAddress& address : contact->addresses) {
    require(address.port != 0, "an address has a port");
    require(socket_address(address).ss_family == AF_INET || socket_address(address).ss_family == AF_INET6,
            "an address has a numeric host");
  }
  StoredRendezvous again(bootstrap, never);
  again.put(*contact, any_time);
  require(again.wait(any_time, any_time) == *contact, "addresses and key survive being stored");
}

}  // namespace shardwire::fuzz
