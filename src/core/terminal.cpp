#include "core/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace sailor {

namespace {

/// Three significant digits without an exponent, for values in [1, 1024).
std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95) return fmt::format("{:.0f}", value);
  if (magnitude >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

/// Width on a terminal: UTF-8 continuation bytes take no column.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

std::string format_time(Seconds time) {
  const double s = time.value();
  if (!std::isfinite(s)) return "-";
  if (s == 0.0) return "0 s";
  const double magnitude = std::abs(s);
  if (magnitude >= 0.9995) return three_digits(s) + " s";
  if (magnitude >= 0.9995e-3) return three_digits(s * 1e3) + " ms";
  return three_digits(s * 1e6) + " us";
}

std::string format_bytes(Bytes amount) {
  static constexpr std::array<const char*, 5> units{"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = amount.value();
  if (std::abs(value) < 1024.0) return fmt::format("{:.0f} B", value);
  std::size_t unit = 0;
  value /= 1024.0;
  while (std::abs(value) >= 1024.0 && unit + 1 < units.size()) {
    value /= 1024.0;
    ++unit;
  }
  return three_digits(value) + " " + units[unit];
}

std::string format_bandwidth(BytesPerSecond rate) {
  const double value = rate.value();
  if (std::abs(value) >= 1e9) return three_digits(value / 1e9) + " GB/s";
  if (std::abs(value) >= 1e6) return three_digits(value / 1e6) + " MB/s";
  return three_digits(value / 1e3) + " kB/s";
}

std::string format_usd(Usd amount) {
  const double value = amount.value();
  if (value == 0.0 || std::abs(value) >= 0.1) return fmt::format("${:.2f}", value);
  const int digits = std::min(12, 1 - static_cast<int>(std::floor(std::log10(std::abs(value)))));
  return fmt::format("${:.{}f}", value, digits);
}

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

void Table::add_row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::fold_constant_columns(const std::vector<std::string_view>& titles) {
  std::string folded;
  if (rows_.size() < 2) return folded;
  for (std::size_t c = columns_.size(); c-- > 0;) {
    const std::string value = rows_.front()[c];
    const bool named = std::find(titles.begin(), titles.end(), columns_[c].title) != titles.end();
    if (!named || !std::all_of(rows_.begin(), rows_.end(), [&](const auto& row) { return row[c] == value; })) continue;
    folded = fmt::format("{} {}{}{}", columns_[c].title, value, folded.empty() ? "" : ", ", folded);
    const auto at = static_cast<std::ptrdiff_t>(c);
    columns_.erase(columns_.begin() + at);
    for (auto& row : rows_) row.erase(row.begin() + at);
  }
  return folded;
}

std::string Table::to_string() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t widest = width(columns_[c].title);
    for (const auto& row : rows_) widest = std::max(widest, width(row[c]));
    widths.push_back(widest);
  }
  std::string text;
  auto add_line = [&](auto&& cell_of) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - width(cell), ' ');
      if (c > 0) line += "  ";
      line += columns_[c].align == Align::right ? padding + cell : cell + padding;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  };
  add_line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  std::size_t total = 0;
  for (const std::size_t w : widths) total += w + 2;
  text += std::string(total >= 2 ? total - 2 : 0, '-') + "\n";
  for (const auto& row : rows_) add_line([&](std::size_t c) -> const std::string& { return row[c]; });
  return text;
}

void suggest_next(const std::vector<std::string>& commands) {
  if (::isatty(STDOUT_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) return;
  std::fflush(stdout);
  for (const std::string& command : commands) fmt::print(stderr, "next: {}\n", command);
}

Progress::Progress(std::string title, std::size_t steps)
    : title_(std::move(title)), steps_(std::max<std::size_t>(steps, 1)), active_(::isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { finish(); }

bool Progress::is_due() const {
  return active_ && std::chrono::steady_clock::now() - last_shown_ > std::chrono::milliseconds(100);
}

void Progress::update(std::size_t done, std::size_t steps, std::string_view what) {
  if (!active_) return;
  steps_ = std::max<std::size_t>(steps, 1);
  done = std::min(done, steps_);
  const double share = static_cast<double>(done) / static_cast<double>(steps_);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  std::string left;
  if (done > 0 && done < steps_) left = ", " + format_time(Seconds(elapsed.count() / share * (1.0 - share))) + " left";
  show(share, what, left);
}

void Progress::update(double share, Seconds left, std::string_view what) {
  if (!active_) return;
  show(std::clamp(share, 0.0, 1.0), what, left.value() > 0.0 ? ", " + format_time(left) + " left" : "");
}

void Progress::show(double share, std::string_view what, std::string_view left) {
  constexpr int cells = 20;
  const int filled = static_cast<int>(share * cells);
  show(fmt::format("{} [{}{}] {:3.0f}%  {}{}", title_, std::string(static_cast<std::size_t>(filled), '#'),
                   std::string(static_cast<std::size_t>(cells - filled), '.'), share * 100.0, what, left));
}

void Progress::update(std::string_view what) {
  if (active_) show(fmt::format("{}: {}", title_, what));
}

void Progress::show(std::string_view line) {
  fmt::print(stderr, "\r\033[K{}", line);
  std::fflush(stderr);
  shown_ = true;
  last_shown_ = std::chrono::steady_clock::now();
}

void Progress::finish() {
  if (active_ && shown_) {
    fmt::print(stderr, "\r\033[K");
    std::fflush(stderr);
  }
  active_ = false;
}

}  // namespace sailor
