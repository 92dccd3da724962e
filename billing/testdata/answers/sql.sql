SELECT o.name, date_trunc('month', e.started_at) AS month, sum(e.cost_pico) / 1e12 AS cost_usd, count(*) AS attempts
FROM usage_event AS e
JOIN organisation AS o ON o.id = e.org_id
LEFT JOIN project AS p ON p.id = e.project_id AND p.deleted_at IS NULL
WHERE e.started_at >= '2026-10-01' AND e.started_at < '2026-11-01' AND e.status <> 'refused'
GROUP BY o.name, month
HAVING sum(e.cost_pico) > 0
ORDER BY cost_usd DESC, o.name
LIMIT 100;
