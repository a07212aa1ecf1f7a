"""One page that shows the fleet as the gateway sees it, without a request to anywhere else."""

SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>warmroute</title>
<style>
  body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
  table { border-collapse: collapse }
  th, td { padding: .25em .75em; text-align: right; border-bottom: 1px solid #ddd }
  th:nth-child(-n+3), td:nth-child(-n+3) { text-align: left }
  tr.out td { color: #a00 }
  meter { width: 6em }
  @media (prefers-color-scheme: dark) {
    body { color: #ddd; background: #181818 }
    th, td { border-color: #444 }
    tr.out td { color: #f88 }
  }
</style>
<h1>warmroute</h1>
<p id="state">...</p>
<table>
  <thead><tr>
    <th>replica<th>model<th>standing<th>own requests<th>of others<th>tokens ahead<th>KV usage
    <th>blocks believed<th>report age
  </thead>
  <tbody id="replicas"></tbody>
</table>
<script>
  "use strict";
  const byId = (id) => document.getElementById(id);
  const number = (value) => value == null ? "-" : Math.round(value).toLocaleString("en");

  function cell(row, content) {
    const td = row.insertCell();
    if (content instanceof Node) td.append(content); else td.textContent = content;
  }

  function usage(value) {
    if (value == null) return "-";
    const meter = document.createElement("meter");
    meter.value = value;
    meter.title = (100 * value).toFixed(1) + " %";
    return meter;
  }

  function show(replica, body) {
    const row = body.insertRow();
    if (replica.standing !== "eligible") row.className = "out";
    cell(row, replica.replica_id);
    cell(row, replica.model ?? "-");
    cell(row, replica.standing + (replica.recovering ? ", slow start" : ""));
    row.cells[2].title = replica.mismatch ?? "";
    cell(row, number(replica.own_requests));
    cell(row, number(replica.foreign_requests));
    cell(row, number(replica.own_ahead_tokens + replica.foreign_ahead_tokens));
    cell(row, usage(replica.kv_usage));
    cell(row, number(replica.believed_blocks));
    cell(row, replica.report_age_s == null ? "-" : replica.report_age_s.toFixed(1) + " s");
  }

  async function ask() {
    const key = sessionStorage.getItem("key");
    const headers = key ? { authorization: "Bearer " + key } : {};
    const answer = await fetch("/admin/replicas", { headers });
    if (answer.status === 401) {
      sessionStorage.setItem("key", prompt("A key of the admin port:") ?? "");
      return;
    }
    const fleet = await answer.json();
    const body = document.createElement("tbody");
    for (const replica of fleet.replicas) show(replica, body);
    body.id = "replicas";
    byId("replicas").replaceWith(body);
    const eligible = fleet.replicas.filter((replica) => replica.standing === "eligible").length;
    byId("state").textContent =
      `${eligible} of ${fleet.replicas.length} replicas eligible; store ${fleet.store}`;
  }

  async function repeat() {
    try { await ask() } catch (error) { byId("state").textContent = "no answer: " + error.message }
    setTimeout(repeat, 1000);
  }
  repeat();
</script>
</html>
"""
