#include "planner/artifact/relaxation.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sailor::planner::artifact {

namespace {

constexpr int steps = 32;
constexpr double close_enough = 1e-3;
constexpr double rounding = 1e-9;

double product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

Relaxation::Relaxation(std::vector<RelaxedCandidate> candidates, std::vector<double> devices,
                       const std::vector<double>& speed, std::vector<double> price, int layers, double max_straggler)
    : candidates_(std::move(candidates)), layers_(layers), price_(std::move(price)) {
  double longest = 0.0;
  for (const RelaxedCandidate& candidate : candidates_) longest = std::max(longest, stage_time(candidate, 0, layers));
  const bool capped = max_straggler < 2.0 * longest;
  max_straggler_ = std::min(max_straggler, 2.0 * longest);
  weights_.push_back(speed);
  if (speed.size() > 1)
    for (std::size_t gpu = 0; gpu < speed.size(); ++gpu)
      for (const double factor : {0.0, 0.6, 0.8, 1.25, 1.7}) {
        weights_.push_back(speed);
        weights_.back()[gpu] *= factor;
      }
  const auto feasible = [&](double straggler, const std::vector<double>& weights) {
    return min_devices(straggler, weights)[layers_] <= product(weights, devices) * (1.0 + rounding);
  };
  for (const auto& weights : weights_)
    if (!feasible(max_straggler_, weights)) return;  // stragglers_ stays empty: impossible
  double low = 0.0;
  for (const auto& weights : weights_) {
    if (low > 0.0 && feasible(low * (1.0 + close_enough), weights)) continue;
    double high = max_straggler_;
    for (int i = 0; i < 40 && high > low * (1.0 + close_enough); ++i) {
      const double middle = (low + high) / 2.0;
      (feasible(middle, weights) ? high : low) = middle;
    }
  }
  low = std::max(low, max_straggler_ * 1e-6);
  for (int i = 0; i <= steps; ++i)
    stragglers_.push_back(low * std::pow(std::max(1.0, max_straggler_ / low), static_cast<double>(i) / steps));
  if (!capped) stragglers_.push_back(unlimited);
  min_.assign(stragglers_.size(), std::vector<std::vector<double>>(weights_.size()));
  min_price_.resize(stragglers_.size());
  // Prices for weighted devices: the one that gives the best bound of the whole, and some around it.
  priced_.push_back({weights_.front(), 0.0, min_sum(0.0, weights_.front())});
  const double all = product(weights_.front(), devices);
  double best = priced_.front().least[layers_];
  double best_price = 0.0;
  for (double one = best / all / 16.0; one < 32.0 * best / all; one *= 2.0) {
    const double bound = min_sum(one, weights_.front())[layers_] - one * all;
    if (bound > best) {
      best = bound;
      best_price = one;
    }
  }
  if (best_price == 0.0) best_price = priced_.front().least[layers_] / all / 4.0;
  for (const double factor : {0.35, 1.0, 3.0}) {
    const double one = best_price * factor;
    priced_.push_back({weights_.front(), one, min_sum(one, weights_.front())});
  }
}

double Relaxation::stage_time(const RelaxedCandidate& candidate, int first, int last) const {
  const double sends = last == layers_ && first == 0 ? 0.0 : first > 0 ? 2.0 * candidate.send : candidate.send;
  return (*candidate.compute)[last] - (*candidate.compute)[first] + sends;
}

std::vector<double> Relaxation::min_devices(double straggler, const std::vector<double>& weights) const {
  std::vector<double> least(layers_ + 1, unlimited);
  least[0] = 0.0;
  std::vector<int> from(candidates_.size(), 1);  // min first layer, other than 0, that is still short enough
  for (int last = 1; last <= layers_; ++last)
    for (std::size_t o = 0; o < candidates_.size(); ++o) {
      const RelaxedCandidate& candidate = candidates_[o];
      int& first = from[o];
      while (first < last && stage_time(candidate, first, last) > straggler) ++first;
      const double devices = weights[candidate.gpu] * candidate.devices;
      if (candidate.lowest[last] == 0 && stage_time(candidate, 0, last) <= straggler)
        least[last] = std::min(least[last], devices);
      const int start = std::max({1, first, candidate.lowest[last]});
      if (start < last) least[last] = std::min(least[last], least[start] + devices);
    }
  // More layers need no fewer devices.
  for (int last = layers_ - 1; last >= 0; --last) least[last] = std::min(least[last], least[last + 1]);
  return least;
}

std::vector<double> Relaxation::min_sum(double price, const std::vector<double>& weights) const {
  std::vector<double> least(layers_ + 1, unlimited);
  least[0] = 0.0;
  for (int last = 1; last <= layers_; ++last)
    for (const RelaxedCandidate& candidate : candidates_) {
      const double devices = price * weights[candidate.gpu] * candidate.devices;
      for (int first = last - 1; first >= candidate.lowest[last]; --first) {
        const double time = stage_time(candidate, first, last);
        if (time > max_straggler_) {
          if (first > 1) first = 1;  // the first stage sends less
          continue;
        }
        least[last] = std::min(least[last], least[first] + time + devices);
      }
    }
  return least;
}

double Relaxation::straggler(int last, const std::vector<double>& left) const {
  if (stragglers_.empty()) return unlimited;
  std::size_t at = 0;  // the first that no weights exclude
  for (std::size_t w = 0; w < weights_.size(); ++w) {
    const double devices = product(weights_[w], left) * (1.0 + rounding);
    const auto excluded = [&](std::size_t straggler) {
      auto& least = min_[straggler][w];
      if (least.empty()) least = min_devices(stragglers_[straggler], weights_[w]);
      return least[last] > devices;
    };
    if (!excluded(at)) continue;
    std::size_t above = stragglers_.size();
    while (at + 1 < above) {
      const std::size_t middle = (at + above) / 2;
      (excluded(middle) ? at : above) = middle;
    }
    if (++at == stragglers_.size()) return unlimited;
  }
  return at == 0 ? (last == layers_ ? stragglers_[0] : 0.0) : stragglers_[at - 1];
}

double Relaxation::sum(int last, const std::vector<double>& left) const {
  double bound = 0.0;
  for (const Priced& priced : priced_) {
    if (priced.least[last] == unlimited) return unlimited;
    bound = std::max(bound, priced.least[last] - priced.price * product(priced.weights, left));
  }
  return bound;
}

double Relaxation::cost(int last, double price, double straggler, double rounds, double others) const {
  double least = unlimited;
  for (std::size_t at = 1; at < stragglers_.size(); ++at) {
    if (stragglers_[at] < straggler) continue;
    if (min_price_[at].empty()) min_price_[at] = min_devices(stragglers_[at], price_);
    if (min_price_[at][last] == unlimited) continue;
    const double time = rounds * std::max(straggler, stragglers_[at - 1]) + others;
    least = std::min(least, (price + min_price_[at][last]) * time);
  }
  return least;
}

}  // namespace sailor::planner::artifact
