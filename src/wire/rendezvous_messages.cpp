// SPDX-License-Identifier: Apache-2.0
#include "wire/rendezvous_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "wire/capnp_output.hpp"
#include "wire/enums.hpp"
#include "wire/limits.hpp"
#include "wire/runs.hpp"
#include "wire/table.hpp"

namespace shardwire::wire {

namespace {

using Builder = schema::Message::Builder;

std::vector<std::int32_t> read_members(capnp::List<std::int32_t>::Reader from, Input& in) {
  std::vector<std::int32_t> members;
  const auto numbers = in.numbers(from, max_boxes_per_message);
  members.reserve(numbers.size());
  for (const std::int32_t member : numbers) {
    if (!members.empty() && in.rank(member) <= members.back()) in.reject("is not ascending");
    members.push_back(in.rank(member));
  }
  return members;
}

Join read_join(schema::MemberRecord::Reader from, Input& in) {
  MemberRecord record;
  record.rank = in.at("Join.rank").rank_or_none(from.getRank());
  record.port = from.getPort();
  record.incarnation = from.getIncarnation();
  record.host = in.at("Join.host").name(from.getHost(), max_name_bytes);
  record.address = in.at("Join.address").name(from.getAddress(), max_name_bytes);
  record.local_path = in.at("Join.localPath").name(from.getLocalPath(), max_name_bytes);
  record.domain = in.at("Join.domain").name(from.getDomain(), max_name_bytes);
  return {std::move(record)};
}

Joined read_joined(schema::Joined::Reader from, Input& in) {
  if (from.getAgeNs() > max_age_ns) in.at("Joined.ageNs").reject(fmt::format("is above {}", max_age_ns));
  return {.epoch = from.getEpoch(),
          .member = in.at("Joined.member").rank(from.getMember()),
          .world_size = in.at("Joined.worldSize").rank(from.getWorldSize()),
          .session = from.getSession(),
          .attempt = in.at("Joined.attempt").attempt(from.getAttempt()),
          .age_ns = from.getAgeNs()};
}

Publish read_publish(schema::Publish::Reader from, Input& in) {
  Publish publish;
  publish.publication = in.at("Publish.publication").name(from.getPublication(), max_name_bytes);
  const auto record = in.at("Publish.record").pass(from.getRecord());
  publish.record.member = in.at("Publish.record.member").rank(record.getMember());
  publish.record.layout_rank = in.at("Publish.record.layout_rank").rank(record.getPlace());
  publish.record.origin = record.getOrigin();
  publish.record.step = record.getStep();
  publish.record.generation = record.getGeneration();
  publish.record.live = !record.getWithdrawn();
  publish.record.manifest = in.at("Publish.record.manifest").digest(record.getManifest());
  publish.record.values = in.at("Publish.record.values").digest(record.getValues());
  publish.record.attempt = in.at("Publish.record.attempt").attempt(record.getAttempt());
  return publish;
}

Roster read_roster(schema::Roster::Reader from, Input& in) {
  Roster roster;
  roster.publication = in.at("Roster.publication").name(from.getPublication(), max_name_bytes);
  roster.whole = from.getWhole();
  std::vector<Digest> digests;
  for (const auto digest : in.at("Roster.digests").list(from.getDigests())) digests.push_back(in.digest(digest));
  const auto groups = in.at("Roster.groups").list(from.getGroups());
  roster.groups.reserve(groups.size());
  std::unordered_set<std::uint32_t> numbers;
  for (const auto group : groups) {
    in.at("Roster.groups", roster.groups.size());
    if (group.getNumber() == 0 || !numbers.insert(group.getNumber()).second) {
      in.reject(fmt::format("has the number {}, which is taken", group.getNumber()));
    }
    if (group.getManifest() >= digests.size() || group.getValues() >= digests.size()) {
      in.reject("refers past the end of the digests");
    }
    roster.groups.push_back({group.getNumber(), group.getEpoch(), group.getOrigin(), group.getStep(),
                             group.getGeneration(), digests[group.getManifest()], digests[group.getValues()],
                             in.attempt(group.getAttempt())});
  }
  roster.runs = decode_runs(in.at("Roster.runs").view(from.getRuns()), in);
  return roster;
}

MembershipChanges read_membership_changes(schema::MembershipChanges::Reader from, Input& in) {
  MembershipChanges membership_changes{decode_runs(in.at("MembershipChanges.runs").view(from.getRuns()), in)};
  for (const MemberRun& run : membership_changes.runs) {
    if (run.group > static_cast<std::uint32_t>(Presence::lost)) in.reject(fmt::format("has the group {}", run.group));
  }
  return membership_changes;
}

Addresses read_addresses(schema::Addresses::Reader from, Input& in) {
  std::vector<std::string> hosts;
  for (const auto host : in.at("Addresses.hosts").list(from.getHosts())) hosts.push_back(in.name(host, max_name_bytes));
  Addresses addresses;
  const auto members = in.at("Addresses.members").list(from.getMembers());
  addresses.members.reserve(members.size());
  for (const auto member : members) {
    in.at("Addresses.members", addresses.members.size());
    if (std::max(member.getHost(), member.getDomain()) >= hosts.size()) in.reject("refers past the end of the hosts");
    Addresses::Entry entry;
    entry.epoch = member.getEpoch();
    entry.member.rank = in.rank(member.getRank());
    entry.member.incarnation = member.getIncarnation();
    entry.member.host = hosts[member.getHost()];
    entry.member.port = member.getPort();
    entry.member.address = in.name(member.getAddress(), max_name_bytes);
    entry.member.local_path = in.name(member.getLocalPath(), max_name_bytes);
    entry.member.domain = hosts[member.getDomain()];
    addresses.members.push_back(std::move(entry));
  }
  addresses.absent = read_members(in.at("Addresses.absent").pass(from.getAbsent()), in);
  return addresses;
}

Gather read_gather(schema::Gather::Reader from, Input& in) {
  Gather gather;
  gather.request = from.getRequest();
  gather.name = in.at("Gather.name").name(from.getName(), max_store_key_bytes);
  gather.value = in.at("Gather.value").data(from.getValue(), max_message_bytes);
  gather.while_waiting = from.getWhileWaiting();
  gather.survivors = from.getSurvivors();
  gather.meeting = from.getMeeting();
  return gather;
}

ExchangeGivenUp read_given_up(schema::ExchangeGivenUp::Reader from, Input& in) {
  ExchangeGivenUp notice;
  notice.exchange = from.getExchange();
  notice.member = in.at("ExchangeGivenUp.member").rank(from.getMember());
  const auto known = static_cast<std::size_t>(from.getCode());
  notice.code = known < wire_errors.size() ? wire_errors[known] : ErrorCode::transport_failed;
  notice.message = in.at("ExchangeGivenUp.message").name(from.getMessage(), max_failure_bytes);
  for (const std::int32_t member : in.at("ExchangeGivenUp.members").numbers(from.getMembers(), max_rank)) {
    notice.members.push_back(in.rank(member));
  }
  std::vector<Box> boxes = in.at("ExchangeGivenUp.gapBoxes").boxes(from.getGapBoxes());
  const auto gaps = in.at("ExchangeGivenUp.gaps").list(from.getGaps(), max_gaps_of_notice);
  if (boxes.size() != gaps.size()) in.reject(fmt::format("has {} boxes", boxes.size()));
  for (const auto gap : gaps) {
    in.at("ExchangeGivenUp.gaps", notice.gaps.size());
    notice.gaps.push_back({in.name(gap.getFqn(), max_fqn_bytes), in.name(gap.getState(), max_name_bytes),
                           std::move(boxes[notice.gaps.size()]), Rank{in.rank(gap.getTarget())}});
  }
  return notice;
}

Gathered read_gathered(schema::Gathered::Reader from, Input& in) {
  Gathered gathered;
  gathered.name = in.at("Gathered.name").name(from.getName(), max_store_key_bytes);
  const auto values = in.at("Gathered.values").list(from.getValues(), static_cast<std::size_t>(max_rank) + 1);
  gathered.values.reserve(values.size());
  for (const auto value : values) gathered.values.push_back(in.data(value, max_message_bytes));
  return gathered;
}

GatherAbsent read_gather_absent(schema::GatherAbsent::Reader from, Input& in) {
  GatherAbsent absent;
  absent.name = in.at("GatherAbsent.name").name(from.getName(), max_store_key_bytes);
  absent.lost = from.getLost();
  absent.members = read_members(in.at("GatherAbsent.members").pass(from.getMembers()), in);
  return absent;
}

}  // namespace

void write(Builder out, const Join& join) {
  auto to = out.initJoin();
  to.setRank(join.member.rank);
  to.setPort(join.member.port);
  to.setIncarnation(join.member.incarnation);
  to.setHost(text_of(join.member.host));
  to.setAddress(text_of(join.member.address));
  to.setLocalPath(text_of(join.member.local_path));
  to.setDomain(text_of(join.member.domain));
}

void write(Builder out, const Joined& joined) {
  auto to = out.initJoined();
  to.setEpoch(joined.epoch);
  to.setMember(joined.member);
  to.setWorldSize(joined.world_size);
  to.setSession(joined.session);
  to.setAttempt(joined.attempt);
  to.setAgeNs(joined.age_ns);
}

void write(Builder out, const Publish& publish) {
  auto to = out.initPublish();
  to.setPublication(text_of(publish.publication));
  auto record = to.initRecord();
  record.setMember(publish.record.member);
  record.setPlace(publish.record.layout_rank);
  record.setOrigin(publish.record.origin);
  record.setAttempt(publish.record.attempt);
  record.setStep(publish.record.step);
  record.setGeneration(publish.record.generation);
  record.setWithdrawn(!publish.record.live);
  write_digest(record.initManifest(), publish.record.manifest);
  write_digest(record.initValues(), publish.record.values);
}

void write(Builder out, const Watch& watch) {
  out.initWatch().setPublication(text_of(watch.publication));
}

void write(Builder out, const Roster& roster) {
  Table<Digest> digests;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> indices;
  for (const RosterGroup& group : roster.groups) {
    const std::uint32_t manifest = digests.index_of(group.manifest);
    indices.emplace_back(manifest, digests.index_of(group.values));
  }
  auto to = out.initRoster();
  to.setPublication(text_of(roster.publication));
  to.setWhole(roster.whole);
  auto to_digests = to.initDigests(digests.size());
  for (unsigned i = 0; i < digests.size(); ++i) write_digest(to_digests[i], digests[i]);
  auto groups = to.initGroups(static_cast<unsigned>(roster.groups.size()));
  for (unsigned i = 0; i < groups.size(); ++i) {
    groups[i].setNumber(roster.groups[i].number);
    groups[i].setEpoch(roster.groups[i].epoch);
    groups[i].setOrigin(roster.groups[i].origin);
    groups[i].setAttempt(roster.groups[i].attempt);
    groups[i].setStep(roster.groups[i].step);
    groups[i].setGeneration(roster.groups[i].generation);
    groups[i].setManifest(indices[i].first);
    groups[i].setValues(indices[i].second);
  }
  to.setRuns(data_of(encode_runs(roster.runs)));
}

void write(Builder out, const MembershipChanges& membership_changes) {
  out.initMembershipChanges().setRuns(data_of(encode_runs(membership_changes.runs)));
}

void write(Builder out, const Lookup& lookup) {
  fill(out.initLookup().initMembers(static_cast<unsigned>(lookup.members.size())), lookup.members);
}

void write(Builder out, const Addresses& addresses) {
  Table<std::string> hosts;
  std::vector<std::uint32_t> indices;
  std::vector<std::uint32_t> domains;
  for (const Addresses::Entry& entry : addresses.members) {
    indices.push_back(hosts.index_of(entry.member.host));
    domains.push_back(hosts.index_of(entry.member.domain));
  }
  auto to = out.initAddresses();
  auto to_hosts = to.initHosts(hosts.size());
  for (unsigned i = 0; i < hosts.size(); ++i) to_hosts.set(i, text_of(hosts[i]));
  auto members = to.initMembers(static_cast<unsigned>(addresses.members.size()));
  for (unsigned i = 0; i < members.size(); ++i) {
    const auto& [epoch, member] = addresses.members[i];
    members[i].setRank(member.rank);
    members[i].setEpoch(epoch);
    members[i].setIncarnation(member.incarnation);
    members[i].setHost(indices[i]);
    members[i].setPort(member.port);
    members[i].setAddress(text_of(member.address));
    members[i].setLocalPath(text_of(member.local_path));
    members[i].setDomain(domains[i]);
  }
  fill(to.initAbsent(static_cast<unsigned>(addresses.absent.size())), addresses.absent);
}

void write(Builder out, const Gather& gather) {
  auto to = out.initGather();
  to.setRequest(gather.request);
  to.setName(text_of(gather.name));
  to.setValue(data_of(gather.value));
  to.setWhileWaiting(gather.while_waiting);
  to.setSurvivors(gather.survivors);
  to.setMeeting(gather.meeting);
}

void write(Builder out, const Gathered& gathered) {
  auto to = out.initGathered();
  to.setName(text_of(gathered.name));
  auto values = to.initValues(static_cast<unsigned>(gathered.values.size()));
  for (unsigned i = 0; i < values.size(); ++i) values.set(i, data_of(gathered.values[i]));
}

void write(Builder out, const GatherQuit& quit) {
  out.initGatherQuit().setName(text_of(quit.name));
}

void write(Builder out, const GatherAbsent& absent) {
  auto to = out.initGatherAbsent();
  to.setName(text_of(absent.name));
  to.setLost(absent.lost);
  fill(to.initMembers(static_cast<unsigned>(absent.members.size())), absent.members);
}

void write(Builder out, const ExchangeGivenUp& notice) {
  auto to = out.initExchangeGivenUp();
  to.setExchange(notice.exchange);
  to.setMember(notice.member);
  to.setCode(to_wire<schema::ErrorCode>(wire_errors, notice.code));
  to.setMessage(text_of(notice.message.substr(0, max_failure_bytes)));
  fill(to.initMembers(static_cast<unsigned>(notice.members.size())), notice.members);
  const std::size_t count = std::min(notice.gaps.size(), max_gaps_of_notice);
  auto gaps = to.initGaps(static_cast<unsigned>(count));
  for (unsigned i = 0; i < count; ++i) {
    gaps[i].setFqn(text_of(notice.gaps[i].fqn));
    gaps[i].setState(text_of(notice.gaps[i].state));
    gaps[i].setTarget(to_int(notice.gaps[i].target));
  }
  write_boxes(to.initGapBoxes(), count, [&](std::size_t i) -> const Box& { return notice.gaps[i].box; });
}

void write(Builder out, const Unwatch& unwatch) {
  out.initUnwatch().setPublication(text_of(unwatch.publication));
}

void write(Builder out, const AttemptRaised& raised) {
  out.initAttemptRaised().setAttempt(raised.attempt);
}

Message read_rendezvous_message(schema::Message::Reader from, Input& in) {
  using Which = schema::Message::Which;
  switch (from.which()) {
    case Which::JOIN: return read_join(in.at("Join").pass(from.getJoin()), in);
    case Which::JOINED: return read_joined(in.at("Joined").pass(from.getJoined()), in);
    case Which::PUBLISH: return read_publish(in.at("Publish").pass(from.getPublish()), in);
    case Which::WATCH: return Watch{in.at("Watch.publication").name(from.getWatch().getPublication(), max_name_bytes)};
    case Which::ROSTER: return read_roster(in.at("Roster").pass(from.getRoster()), in);
    case Which::MEMBERSHIP_CHANGES:
      return read_membership_changes(in.at("MembershipChanges").pass(from.getMembershipChanges()), in);
    case Which::LOOKUP: return Lookup{read_members(in.at("Lookup.members").pass(from.getLookup().getMembers()), in)};
    case Which::ADDRESSES: return read_addresses(in.at("Addresses").pass(from.getAddresses()), in);
    case Which::GATHER: return read_gather(in.at("Gather").pass(from.getGather()), in);
    case Which::GATHERED: return read_gathered(in.at("Gathered").pass(from.getGathered()), in);
    case Which::GATHER_QUIT:
      return GatherQuit{in.at("GatherQuit.name").name(from.getGatherQuit().getName(), max_store_key_bytes)};
    case Which::GATHER_ABSENT: return read_gather_absent(in.at("GatherAbsent").pass(from.getGatherAbsent()), in);
    case Which::EXCHANGE_GIVEN_UP: return read_given_up(in.at("ExchangeGivenUp").pass(from.getExchangeGivenUp()), in);
    case Which::UNWATCH:
      return Unwatch{in.at("Unwatch.publication").name(from.getUnwatch().getPublication(), max_name_bytes)};
    case Which::ATTEMPT_RAISED:
      return AttemptRaised{in.at("AttemptRaised.attempt").attempt(from.getAttemptRaised().getAttempt())};
    default: in.at("Message").reject("is not for the rendezvous");
  }
}

}  // namespace shardwire::wire
