#include "elastic/controller.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "core/log.hpp"
#include "core/stopwatch.hpp"
#include "core/terminal.hpp"
#include "elastic/folder.hpp"
#include "elastic/plan_desk.hpp"
#include "elastic/slow_ranks.hpp"
#include "elastic/time_account.hpp"
#include "runtime/sockets/coordinator.hpp"

namespace sailor::elastic {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using runtime::EpochChoice;
using runtime::MemberInfo;
using runtime::MemberProgress;

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::vector<MemberFacts> facts_of(const std::vector<MemberInfo>& members) {
  std::vector<MemberFacts> facts;
  for (const MemberInfo& member : members) facts.push_back(member.facts);
  return facts;
}

/// Hosts, devices and processes of an epoch, by rank. `plan`: the initial one, for complete_facts().
Json members_to_json(const std::vector<MemberInfo>& by_rank, const Plan& plan) {
  Json members = Json::array();
  for (MemberFacts facts : facts_of(by_rank)) {
    (void)complete_facts(facts, plan);
    members.push_back({{"host", facts.host}, {"gpu", facts.gpu}, {"process", facts.process}});
  }
  return members;
}

class Controller final : public runtime::MembershipPolicy {
 public:
  Controller(const ControllerSettings& settings, JsonLines journal, JsonLines events)
      : settings_(settings), journal_(std::move(journal)), events_(std::move(events)), plan_(settings.plan) {}

  Result<int> run() {
    if (has_ended(journal_.lines())) {
      if (settings_.say)
        settings_.say(fmt::format("the training of '{}' is done: nothing to do", settings_.folder.string()));
      return 0;
    }
    std::optional<runtime::RestoredEpoch> restored;
    // A stopped training starts anew: none of its members are left, and it resumes from its checkpoint.
    if (auto before = last_epoch(journal_.lines()); before && !was_stopped(journal_.lines())) {
      auto plan = parse_plan(before->plan, "the journal's plan");
      if (!plan) return fail(plan.error(), settings_.folder.string());
      plan_ = *std::move(plan);
      fresh_ = false;
      in_epoch_ = true;
      is_successor_ = true;
      restored = std::move(before->members);
      restored->patience = settings_.silence;
      epoch_ = restored->epoch;
      for (const Json& earlier : events_.lines()) take_over(earlier);
      event({{"what", "controller"}, {"epoch", epoch_}}, fmt::format("a new controller goes on with epoch {}", epoch_));
    } else if (before) {
      // Epoch numbers continue, so that they differ between starts of the training.
      restored = runtime::RestoredEpoch{
          .job = before->members.job, .epoch = before->members.epoch, .members = {}, .patience = Seconds{}};
    }
    auto coordinator = runtime::Coordinator::start({.port = settings_.port,
                                                    .silence = settings_.silence,
                                                    .unwinding = Seconds(unwinding()),
                                                    .policy = this,
                                                    .restored = restored});
    if (!coordinator) return fail(coordinator.error());
    {
      const std::scoped_lock lock(mutex_);
      coordinator_ = coordinator->get();
      desk_ = std::make_unique<PlanDesk>(settings_.make_plan, [this] { coordinator_->wake(); });
    }
    SAILOR_CHECK(announce_controller(settings_.folder, (*coordinator)->addresses()));
    Result<int> outcome = 1;
    {
      std::unique_lock lock(mutex_);
      while (!ended_) {
        changed_.wait_for(lock, std::chrono::milliseconds(100));
        if (settings_.beat) settings_.beat();
      }
      outcome = outcome_;
    }
    // The remaining members are told the reason before the connections close.
    for (int i = 0; i < 30 && members_left() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (settings_.beat) settings_.beat();
    }
    std::unique_ptr<PlanDesk> desk;
    {
      const std::scoped_lock lock(mutex_);
      desk = std::move(desk_);
    }
    desk.reset();  // it wakes the coordinator
    if (outcome && *outcome == 0)
      if (const auto written = announce_end(settings_.folder); !written) log_warning("{}", written.error().message());
    coordinator->reset();
    return outcome;
  }

  // ---- Called by the coordinator's thread

  std::optional<EpochChoice> choose(const std::vector<MemberInfo>& all) override {
    const std::scoped_lock lock(mutex_);
    if (ended_ || desk_ == nullptr || seconds_since(last_loss_) < settle_time) return std::nullopt;
    std::vector<MemberInfo> ready;
    for (const MemberInfo& member : all)
      if (member.ready && !strangers_.contains(member.id)) ready.push_back(member);
    if (ready.empty()) return std::nullopt;
    for (MemberInfo& member : ready) (void)complete_facts(member.facts, settings_.plan);
    // Nodes that are to be released hand over their state.
    std::vector<MemberInfo> leaving;
    take_out_excluded(ready, leaving);
    if (ready.empty()) {
      waits_for_more("all nodes that are left are excluded");
      return std::nullopt;
    }
    if (fresh_) {
      if (auto order = assign_ranks(plan_, facts_of(ready))) return choice_of(plan_, ready, *order, leaving);
      if (const double waited = seconds_since(first_joined_); waited < start_patience()) {
        if (waited > time_to_start) tell_of_start(ready);
        return std::nullopt;
      }
    }
    for (MemberInfo& member : ready) member.facts.wanted_rank = -1;
    keep_at_most(ready);
    if (static_cast<int>(ready.size()) < settings_.min_ranks) {
      waits_for_more(fmt::format("{} are left, fewer than {} (--min-ranks)", describe_devices(facts_of(ready)),
                                 settings_.min_ranks));
      return std::nullopt;
    }
    const auto plan = desk_->ask(plan_, facts_of(ready), true);
    if (!plan) return std::nullopt;
    if (!*plan) {
      waits_for_more(fmt::format("no plan for {}: {}", describe_devices(facts_of(ready)), plan->error().what));
      return std::nullopt;
    }
    EpochBefore before{.plan = plan_, .ranks = {}};
    for (const MemberInfo& member : ready) before.ranks.push_back(member.rank);
    const auto order = assign_ranks(**plan, facts_of(ready), &before);
    if (!order) {
      waits_for_more(
          fmt::format("the plan for {} cannot be placed: {}", describe_devices(facts_of(ready)), order.error().what));
      return std::nullopt;
    }
    return choice_of(**plan, ready, *order, leaving);
  }

  void joined(const MemberInfo& member) override {
    const std::scoped_lock lock(mutex_);
    if (joined_ == 0) first_joined_ = Clock::now();
    ++joined_;
    waiting_since_.reset();
    MemberFacts facts = member.facts;
    if (const auto known = complete_facts(facts, settings_.plan); !known) {
      log_warning("{}", known.error().message());
      strangers_.insert(member.id);
      coordinator_->dismiss(member.id, runtime::Dismissal::refused, known.error().message());
      return;
    }
    if (epoch_ > 0 && member.rank < 0)
      event({{"what", "joined"},
             {"host", facts.host},
             {"gpu", facts.gpu},
             {"zone", facts.zone},
             {"process", facts.process}},
            fmt::format("{} on {} has joined", facts.gpu, facts.host));
  }

  void lost(const MemberInfo& member, const std::string& how) override {
    const std::scoped_lock lock(mutex_);
    last_loss_ = Clock::now();
    progress_.erase(member.id);
    if (in_epoch_ && !done_.empty() && member.rank >= 0 && member.rank < plan_.ranks()) {
      // Ranks leave only after all have finished: this one just did not report it.
      is_done(member.rank, status_);
      return;
    }
    if (member.rank < 0 || (in_epoch_ && member.rank >= plan_.ranks())) {
      event({{"what", "left"}, {"host", member.facts.host}, {"process", member.facts.process}, {"how", how}},
            fmt::format("a process on {} that waits to take part {}", member.facts.host, how));
      return;
    }
    note_interruption(fmt::format("rank {} on {} {}", member.rank, member.facts.host, how));
    event(rank_event("lost", member, "how", how),
          fmt::format("lost rank {} on {}: it {}", member.rank, member.facts.host, how));
  }

  void failed(const MemberInfo& member, const std::string& why) override {
    const std::scoped_lock lock(mutex_);
    note_interruption(fmt::format("rank {} on {} reports: {}", member.rank, member.facts.host, why));
    event(rank_event("failed", member, "why", why), {});
  }

  void begins(std::uint64_t job, std::uint64_t epoch, const EpochChoice& choice,
              const std::vector<MemberInfo>& by_rank) override {
    const std::scoped_lock lock(mutex_);
    epoch_ = epoch;
    const std::string before = plan_to_toml(plan_);
    const std::string chosen = parse_payload(choice.payload)->plan;  // choice_of() made it
    if (auto plan = parse_plan(chosen, "the plan")) plan_ = *std::move(plan);
    if (before != chosen && desk_ != nullptr) desk_->forget();
    if (const auto written = journal_.add(journal_line(job, epoch, by_rank, choice.needed, chosen), true); !written)
      log_warning("{}: the controller cannot be replaced if it dies", written.error().message());
    spares_ = static_cast<int>(by_rank.size()) - plan_.ranks();
    event({{"what", "epoch"},
           {"epoch", epoch_},
           {"ranks", plan_.ranks()},
           {"plan", describe(plan_)},
           {"tokens_per_iteration", plan_.job.tokens()},
           {"members", members_to_json(by_rank, settings_.plan)}},
          {});
    progress_.clear();
    done_.clear();
    resumed_.reset();
    redone_ = 0;
    first_iteration_ended_ = false;
    advanced_ = Clock::now();
    iteration_ = -1;
    slowest_ = Seconds{};
    in_epoch_ = true;
    is_told_ = false;
    fresh_ = false;
    change_asked_ = false;
    began_ = Clock::now();
    waiting_since_.reset();
    planned_ahead_ = false;
    slow_ranks_.begin_epoch();
  }

  void progressed(const MemberInfo& member, const MemberProgress& progress) override {
    const std::scoped_lock lock(mutex_);
    progress_[member.id] = progress;
    total_ = std::max(total_, progress.of);
    redone_ = std::max(redone_, progress.redone);
    if (!resumed_) resumed_ = progress.iteration;
    if (!progress.from.empty()) from_ = progress.from;
    if (progress.iteration > iteration_) {
      if (iteration_ >= 0) {
        slowest_ = std::max(slowest_, progress.time);
        usual_time_ = progress.time;
      }
      iteration_ = progress.iteration;
      advanced_ = Clock::now();
      if (iteration_ > furthest_) hangs_ = 0;
      furthest_ = std::max(furthest_, iteration_);
    }
    if (!first_iteration_ended_ && resumed_ && progress.iteration > *resumed_) {
      first_iteration_ended_ = true;
      goes_on();
    }
  }

  void done(const MemberInfo& member, int status, const std::string& text) override {
    const std::scoped_lock lock(mutex_);
    if (member.rank < 0) return;
    if (!text.empty()) failure_ = text;
    is_done(member.rank, status);
  }

  void aborted(const MemberInfo& member, const std::string& text) override {
    const std::scoped_lock lock(mutex_);
    end(fail(ErrorCode::failure, fmt::format("rank {} on {}: {}", member.rank, member.facts.host, text)));
  }

  void tick(const std::vector<MemberInfo>& members) override {
    const std::scoped_lock lock(mutex_);
    left_ = members.size();
    if (ended_) {
      for (const MemberInfo& member : members)
        if (farewells_.insert(member.id).second && !done_.contains(member.rank))
          coordinator_->dismiss(member.id, runtime::Dismissal::over, "the training has ended");
      return;
    }
    watch_iterations(members);
    if (seconds_since(looked_) > 1.0) {
      looked_ = Clock::now();
      if (auto nodes = excluded_nodes(settings_.folder))
        set_excluded(*std::move(nodes));
      else if (!std::exchange(warned_of_exclude_, true))
        log_warning("{}", nodes.error().message());
      take_requests(members);
      send_excluded_home(members);
      name_slow_ranks(members);
    }
    // A controller that has replaced another waits for the members to find it.
    const bool all_have_come = !is_successor_ || seconds_since(started_) > settings_.silence.value() + 1.0;
    if (in_epoch_ && members.empty() && all_have_come) {
      in_epoch_ = false;
      start_afresh();
      waits_for_more("all ranks are lost");
    }
    if (waiting_since_ && seconds_since(*waiting_since_) > settings_.patience.value())
      end(fail(ErrorCode::unavailable,
               fmt::format("{}; nobody came within {:g} s", waits_because_, settings_.patience.value())));
    if (joined_ == 0 && epoch_ == 0 && seconds_since(started_) > settings_.patience.value())
      end(fail(ErrorCode::unavailable, fmt::format("no rank came within {:g} s", settings_.patience.value())));
    if (settings_.stop_request && settings_.stop_request() != 0 && members.empty())
      end(fail(ErrorCode::unavailable, "stopped on a signal, and no rank is left"));
    look_ahead(members);
  }

 private:
  static constexpr double time_to_start = 3.0;  // s; ranks of one job do not come at the same moment
  static constexpr double settle_time = 0.05;   // s; ranks of a dying node leave one after the other

  /// Seconds that the start waits for the devices of the plan; then training begins with those that are there.
  [[nodiscard]] double start_patience() const { return std::min(60.0, settings_.patience.value() / 2); }

  [[nodiscard]] double unwinding() const {
    return 2.0 * settings_.silence.value() + 2.0 * std::max(slowest_.value(), predicted());
  }
  /// s
  [[nodiscard]] double predicted() const { return plan_.prediction ? plan_.prediction->iteration_time.value() : 0.0; }

  std::size_t members_left() {
    const std::scoped_lock lock(mutex_);
    return left_;
  }

  void is_done(int rank, int status) {
    done_[rank] = status;
    status_ = std::max(status_, status);
    if (static_cast<int>(done_.size()) >= plan_.ranks()) end(status_);
  }

  /// Drops the youngest members beyond max_ranks.
  void keep_at_most(std::vector<MemberInfo>& ready) const {
    if (settings_.max_ranks <= 0 || static_cast<int>(ready.size()) <= settings_.max_ranks) return;
    std::stable_sort(ready.begin(), ready.end(), [](const MemberInfo& a, const MemberInfo& b) {
      return std::pair(a.rank < 0, a.id) < std::pair(b.rank < 0, b.id);
    });
    ready.resize(static_cast<std::size_t>(settings_.max_ranks));
  }

  [[nodiscard]] EpochChoice choice_of(const Plan& plan, const std::vector<MemberInfo>& ready,
                                      const std::vector<std::size_t>& order,
                                      const std::vector<MemberInfo>& leaving) const {
    std::vector<std::string> hosts;  // of the plan's ranks: spares, which come last, keep no copies
    for (const std::size_t index : order)
      if (static_cast<int>(hosts.size()) < plan.ranks()) hosts.push_back(ready[index].facts.host);
    EpochChoice choice{.ranks = {},
                       .payload = to_text({.plan = plan_to_toml(plan),
                                           .copies = !settings_.copies || settings_.copies(plan, hosts),
                                           .begun_unix_ms = static_cast<std::int64_t>(unix_time() * 1e3)})};
    for (const std::size_t index : order) choice.ranks.push_back(ready[index].id);
    for (const MemberInfo& member : leaving) choice.ranks.push_back(member.id);
    choice.needed = plan.ranks();
    return choice;
  }

  void set_excluded(std::set<std::string> nodes) {
    for (const std::string& node : nodes)
      if (!excluded_.contains(node)) event({{"what", "excluded"}, {"host", node}}, {});
    for (const std::string& node : excluded_)
      if (!nodes.contains(node)) event({{"what", "allowed_again"}, {"host", node}}, {});
    excluded_ = std::move(nodes);
  }

  void take_out_excluded(std::vector<MemberInfo>& members, std::vector<MemberInfo>& leaving) const {
    const auto first = std::stable_partition(members.begin(), members.end(), [&](const MemberInfo& member) {
      return !excluded_.contains(member.facts.host);
    });
    leaving.assign(first, members.end());
    members.erase(first, members.end());
  }

  void event(Json event, const std::string& line) {
    event["unix_time_s"] = unix_time();
    account_.add(event);
    if (const auto written = events_.add(event, false); !written) log_warning("{}", written.error().message());
    if (!line.empty() && settings_.say) settings_.say(line);
  }

  /// An event of a rank of the epoch, with its reason under `key`.
  [[nodiscard]] Json rank_event(const char* what, const MemberInfo& member, const char* key,
                                const std::string& reason) const {
    return {{"what", what},        {"epoch", epoch_},           {"iteration", iteration_},
            {"rank", member.rank}, {"host", member.facts.host}, {key, reason}};
  }

  /// Continues what the controller before this one has told.
  void take_over(const Json& event) {
    account_.add(event);
    const std::string what = event.value("what", "");
    if (what == "excluded") excluded_.insert(event.value("host", ""));
    if (what == "allowed_again") excluded_.erase(event.value("host", ""));
    if (what == "begins" || what == "goes_on") {
      is_told_ = event.value("epoch", std::uint64_t{0}) == epoch_;
      interrupted_.reset();
    } else if (!interrupted_ && (what == "lost" || what == "failed" || what == "hangs" || what == "change")) {
      const std::chrono::duration<double> since(unix_time() - number_in(event, "unix_time_s", unix_time()));
      interrupted_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(since);
      interruption_ = what == "lost" ? fmt::format("rank {} on {} {}", event.value("rank", -1), event.value("host", ""),
                                                   event.value("how", ""))
                      : what == "change" ? "planned change: " + event.value("why", "")
                                         : event.value("why", "");
    }
  }

  void note_interruption(const std::string& why) {
    in_epoch_ = false;
    if (!interrupted_) {
      interrupted_ = Clock::now();
      interruption_ = why;
    }
    coordinator_->set_unwinding(Seconds(unwinding()));
  }

  /// No member has any state left: the initial plan applies again.
  void start_afresh() {
    fresh_ = true;
    plan_ = settings_.plan;
    joined_ = 0;
    desk_->forget();
  }

  void tell_of_start(const std::vector<MemberInfo>& ready) {
    if (std::exchange(is_start_told_, true)) return;
    const std::string why =
        fmt::format("the plan needs {}, and there {} {}", plural(static_cast<std::size_t>(plan_.ranks()), "rank"),
                    ready.size() == 1 ? "is" : "are", describe_devices(facts_of(ready)));
    event({{"what", "waits"}, {"why", why}},
          fmt::format("{}; waits up to {:g} s for more, and then begins with those", why, start_patience()));
  }

  void waits_for_more(const std::string& why) {
    if (waiting_since_ && waits_because_ == why) return;
    waiting_since_ = waiting_since_.value_or(Clock::now());
    waits_because_ = why;
    event({{"what", "waits"}, {"why", why}},
          fmt::format("{}; waits up to {:g} s for more", why, settings_.patience.value()));
  }

  /// The first iteration of an epoch has ended, or the first that a successor hears of.
  void goes_on() {
    if (std::exchange(is_told_, false) && !interrupted_) return;
    const std::string plan = describe(plan_);
    if (!interrupted_) {
      event({{"what", "begins"}, {"epoch", epoch_}, {"iteration", *resumed_}, {"ranks", plan_.ranks()}, {"plan", plan}},
            fmt::format("epoch {}: {} from iteration {} on, {}", epoch_,
                        plural(static_cast<std::size_t>(plan_.ranks()), "rank"), *resumed_, plan));
      return;
    }
    const double seconds = seconds_since(*interrupted_);
    event({{"what", "goes_on"},
           {"epoch", epoch_},
           {"why", interruption_},
           {"iteration", *resumed_},
           {"seconds", seconds},
           {"iterations_again", redone_},
           {"seconds_again", static_cast<double>(redone_) * usual_time_.value()},
           {"tokens_again", static_cast<double>(redone_) * plan_.job.tokens()},
           {"from", from_},
           {"ranks", plan_.ranks()},
           {"spares", spares_},
           {"plan", plan}},
          fmt::format("epoch {}: {} {} on at iteration {} from {} after {:.1f} s ({}; {} again): {}", epoch_,
                      plural(static_cast<std::size_t>(plan_.ranks()), "rank"), plan_.ranks() == 1 ? "goes" : "go",
                      *resumed_, from_ == "memory" ? from_ : "the " + from_, seconds, interruption_,
                      plural(static_cast<std::size_t>(redone_), "iteration"), plan));
    interrupted_.reset();
  }

  void watch_iterations(const std::vector<MemberInfo>& /*members*/) {
    if (!in_epoch_ || iteration_ < 0 || (total_ > 0 && iteration_ >= total_)) return;
    const double usual = std::max(slowest_.value(), predicted());
    const double limit = 2.0 * settings_.silence.value() + 10.0 * usual + (first_iteration_ended_ ? 0.0 : 60.0);
    if (seconds_since(advanced_) < limit) return;
    const std::string why =
        fmt::format("no iteration ended for {:.0f} s (the slowest took {:.2g} s)", seconds_since(advanced_), usual);
    note_interruption(why);
    event({{"what", "hangs"}, {"epoch", epoch_}, {"iteration", iteration_}, {"why", why}}, why);
    if (++hangs_ >= max_hangs) {
      end(fail(ErrorCode::failure, fmt::format("the training hangs again and again: {}", why)));
      return;
    }
    coordinator_->break_epoch(why);
  }

  /// Members that can take part: those of the epoch, and those ready for the next. Wanted ranks count in the first
  /// epoch only.
  [[nodiscard]] std::vector<MemberInfo> candidates(const std::vector<MemberInfo>& members) const {
    std::vector<MemberInfo> all;
    for (MemberInfo member : members) {
      if (strangers_.contains(member.id) || (member.rank < 0 && !member.ready)) continue;
      (void)complete_facts(member.facts, settings_.plan);
      member.facts.wanted_rank = -1;
      all.push_back(std::move(member));
    }
    return all;
  }

  void ask_for_change(const std::string& why, const Plan& plan) {
    change_asked_ = true;
    interrupted_ = Clock::now();
    interruption_ = "planned change: " + why;
    event({{"what", "change"},
           {"iteration", iteration_},
           {"why", why},
           {"ranks", plan.ranks()},
           {"plan", describe(plan)}},
          fmt::format("planned change: {}; {}", why, describe(plan)));
    coordinator_->request_change(why);
  }

  /// Takes up plans that users or programs request.
  void take_requests(const std::vector<MemberInfo>& members) {
    if (!in_epoch_ || change_asked_ || !first_iteration_ended_ || desk_ == nullptr) return;
    const auto request = next_request(settings_.folder);
    if (!request) return;
    std::vector<MemberInfo> all = candidates(members);
    std::vector<MemberInfo> leaving;
    take_out_excluded(all, leaving);
    keep_at_most(all);
    std::string problem;
    if (!request->plan) {
      problem = request->plan.error().message();
    } else if (const TrainingJob& job = request->plan->job;
               job.model != plan_.job.model || job.global_batch != plan_.job.global_batch ||
               job.sequence_length != plan_.job.sequence_length || job.precision != plan_.job.precision) {
      problem = "it is for another job";
    } else if (const auto order = assign_ranks(*request->plan, facts_of(all)); !order) {
      problem = order.error().message();
    }
    answer_request(settings_.folder, *request, problem.empty());
    if (!problem.empty()) {
      event({{"what", "refused"}, {"request", request->name}, {"why", problem}},
            fmt::format("the plan of {} is refused: {}", request->name, problem));
      return;
    }
    desk_->put(facts_of(all), *request->plan);
    ask_for_change("asked for by " + request->name, *request->plan);
  }

  /// Dismisses processes of excluded nodes that have handed over their state.
  void send_excluded_home(const std::vector<MemberInfo>& members) {
    if (!in_epoch_ || !first_iteration_ended_) return;
    for (const MemberInfo& member : members)
      if (excluded_.contains(member.facts.host) && (member.rank < 0 || member.rank >= plan_.ranks())) {
        event({{"what", "sent_home"}, {"host", member.facts.host}, {"process", member.facts.process}},
              fmt::format("a process on {}, which is excluded, has left", member.facts.host));
        coordinator_->dismiss(member.id, runtime::Dismissal::over,
                              "the training has ended for this node: it is excluded");
      }
  }

  void name_slow_ranks(const std::vector<MemberInfo>& members) {
    if (!in_epoch_ || !first_iteration_ended_) return;
    std::map<int, Seconds> busy;
    std::map<int, std::string> hosts;
    for (const MemberInfo& member : members)
      if (const auto told = progress_.find(member.id); told != progress_.end()) {
        busy[member.rank] = told->second.busy;
        hosts[member.rank] = member.facts.host;
      }
    for (const SlowRank& slow : slow_ranks_.look(plan_, busy))
      event({{"what", "slow"},
             {"rank", slow.rank},
             {"host", hosts.at(slow.rank)},
             {"times_its_peers", slow.times_its_peers}},
            fmt::format("rank {} on {} computes {:.1f} times as long as its peers", slow.rank, hosts.at(slow.rank),
                        slow.times_its_peers));
  }

  /// Plans ahead: for devices that wait to take part, and for the loss of a host.
  void look_ahead(const std::vector<MemberInfo>& members) {
    if (!in_epoch_ || change_asked_ || !first_iteration_ended_ || desk_ == nullptr) return;
    std::vector<MemberInfo> all = candidates(members);
    std::vector<MemberInfo> leaving;
    take_out_excluded(all, leaving);
    keep_at_most(all);
    if (all.empty()) return;
    const bool must_leave = std::any_of(leaving.begin(), leaving.end(), [&](const MemberInfo& member) {
      return member.rank >= 0 && member.rank < plan_.ranks();
    });
    // With too few devices training would stop and wait: the nodes are released when others have come.
    if (must_leave && static_cast<int>(all.size()) >= settings_.min_ranks) {
      const auto plan = desk_->ask(plan_, facts_of(all), false);
      if (plan && *plan) ask_for_change(fmt::format("{} is excluded", leaving.front().facts.host), **plan);
      return;
    }
    // Spares of this epoch may also be used in the next, if a better plan has been found for them.
    const auto waiting = std::count_if(all.begin(), all.end(), [](const MemberInfo& one) { return one.rank < 0; });
    if (waiting > 0 && seconds_since(began_) > settings_.switch_time.value()) {
      const auto plan = desk_->ask(plan_, facts_of(all), false);
      if (plan && *plan && pays(**plan))
        ask_for_change(fmt::format("{} more", plural(static_cast<std::size_t>(waiting), "device")), **plan);
      return;
    }
    if (std::exchange(planned_ahead_, true)) return;
    for (const std::vector<MemberFacts>& left :
         devices_after_losses(facts_of(all), settings_.min_ranks, max_in_advance))
      (void)desk_->ask(plan_, left, false);
  }

  /// Whether the plan is so much better that the training ends sooner, including the standstill.
  [[nodiscard]] bool pays(const Plan& plan) const {
    if (!plan.prediction || !plan_.prediction) return plan.ranks() > plan_.ranks();
    const double now = plan_.prediction->iteration_time.value();
    const double then = plan.prediction->iteration_time.value();
    if (then <= 0.0 || now / then < 1.0 + settings_.min_gain) return false;
    if (total_ <= 0) return true;
    return static_cast<double>(total_ - iteration_) * (now - then) > settings_.switch_time.value();
  }

  void end(Result<int> outcome) {
    if (ended_) return;
    if (outcome && *outcome != 0 && !failure_.empty()) outcome = fail(ErrorCode::failure, failure_);
    const double now = unix_time();
    const double without_training = account_.without_training(now).value();
    const double seconds = account_.has_begun() ? account_.total(now).value() : seconds_since(started_);
    Json told{{"what", "done"},
              {"seconds", seconds},
              {"seconds_without_training", without_training},
              {"seconds_again", account_.again().value()},
              {"goodput", account_.goodput(now)},
              {"epochs", epoch_},
              {"iteration", outcome && *outcome == 0 && total_ > 0 ? total_ : iteration_}};
    if (outcome) told["status"] = *outcome;
    if (!outcome) told["error"] = outcome.error().message();
    event(told, outcome
                    ? fmt::format("{} after {:.0f} s in {}: {:.1f} s without training, {:.1f} s for iterations that "
                                  "were run again; goodput {:.1f} %",
                                  *outcome == 0 ? "done" : fmt::format("ended with status {}", *outcome), seconds,
                                  plural(static_cast<std::size_t>(epoch_), "epoch"), without_training,
                                  account_.again().value(), account_.goodput(now) * 100.0)
                    : std::string());
    if (const auto written = journal_.add({{"what", outcome && *outcome == 0 ? "ended" : "stopped"}}, true); !written)
      log_warning("{}", written.error().message());
    outcome_ = std::move(outcome);
    ended_ = true;
    changed_.notify_all();
  }

  static constexpr int max_hangs = 3;               // consecutive, without an iteration in between
  static constexpr std::size_t max_in_advance = 8;  // plans for losses that may come

  const ControllerSettings& settings_;
  std::mutex mutex_;
  std::condition_variable changed_;
  JsonLines journal_;
  JsonLines events_;
  runtime::Coordinator* coordinator_ = nullptr;
  std::unique_ptr<PlanDesk> desk_;
  Clock::time_point started_ = Clock::now();
  bool ended_ = false;
  Result<int> outcome_ = 1;

  Plan plan_;  // plan of the current or latest epoch
  std::uint64_t epoch_ = 0;
  bool in_epoch_ = false;
  bool is_successor_ = false;  // successor of a controller that died
  bool is_told_ = false;       // the epoch of the controller before, whose first iteration it has told of
  bool fresh_ = true;          // the next epoch begins under the initial plan
  int spares_ = 0;
  Clock::time_point began_ = Clock::now();
  int joined_ = 0;
  Clock::time_point first_joined_{};
  bool is_start_told_ = false;
  Clock::time_point last_loss_{};
  Clock::time_point looked_{};
  std::set<std::string> excluded_;  // hosts
  bool warned_of_exclude_ = false;
  SlowRanks slow_ranks_;
  std::set<std::uint64_t> strangers_;  // members with devices of no known kind
  std::set<std::uint64_t> farewells_;
  std::size_t left_ = 0;
  std::optional<Clock::time_point> waiting_since_;
  std::string waits_because_;

  std::map<std::uint64_t, MemberProgress> progress_;
  std::int64_t iteration_ = -1;  // furthest of the epoch; -1: not known
  std::int64_t furthest_ = -1;   // furthest of the training
  std::int64_t total_ = 0;       // iterations of the training; 0: not known
  Clock::time_point advanced_ = Clock::now();
  Seconds slowest_{};
  Seconds usual_time_{};  // of the last iteration, also of the epoch before
  int hangs_ = 0;
  std::optional<std::int64_t> resumed_;
  std::int64_t redone_ = 0;
  std::string from_ = "start";
  bool first_iteration_ended_ = false;
  bool change_asked_ = false;
  bool planned_ahead_ = false;  // for losses that may come
  std::optional<Clock::time_point> interrupted_;
  std::string interruption_;
  TimeAccount account_;

  std::map<int, int> done_;  // exit statuses by rank
  int status_ = 0;
  std::string failure_;
};

}  // namespace

Result<int> control(const ControllerSettings& settings) {
  auto journal = JsonLines::open(settings.folder / "journal.jsonl");
  if (!journal) return fail(journal.error());
  auto events = JsonLines::open(settings.folder / "events.jsonl");
  if (!events) return fail(events.error());
  Controller controller(settings, *std::move(journal), *std::move(events));
  return controller.run();
}

}  // namespace sailor::elastic
