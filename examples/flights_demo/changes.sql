-- What happens to the fleet while flights are running: updates, inserts and deletes of planes and airports.
-- Plain SQL, so that PostgreSQL runs it as the source and DuckDB runs it to compute the truth.

-- A refit: every Boeing 737-700 gets eight more seats.
UPDATE planes SET seats = seats + 8 WHERE model LIKE '737-7%';
-- A maker changes its name.
UPDATE planes SET manufacturer = 'AIRBUS' WHERE manufacturer = 'AIRBUS INDUSTRIE';
-- Planes that fly but were never registered.
INSERT INTO planes (tailnum, year, type, manufacturer, model, engines, seats, speed, engine) VALUES
  ('N3BWAA', 2013, 'Fixed wing multi engine', 'BOEING', '737-823', 2, 160, NULL, 'Turbo-fan'),
  ('N3CEAA', 2013, 'Fixed wing multi engine', 'BOEING', '737-823', 2, 160, NULL, 'Turbo-fan'),
  ('N725MQ', 1997, 'Fixed wing multi engine', 'EMBRAER', 'EMB-145LR', 2, 50, NULL, 'Turbo-jet');
-- Retired.
DELETE FROM planes WHERE year < 1980;

-- Airports that flights go to and nobody had entered.
INSERT INTO airports (faa, name, lat, lon, alt, tz, dst, tzone) VALUES
  ('BQN', 'Rafael Hernandez', 18.4949, -67.1294, 237, -4, 'N', 'America/Puerto_Rico'),
  ('SJU', 'Luis Munoz Marin Intl', 18.4394, -66.0018, 9, -4, 'N', 'America/Puerto_Rico'),
  ('STT', 'Cyril E King', 18.3373, -64.9734, 23, -4, 'N', 'America/St_Thomas');
UPDATE airports SET name = 'Denver International' WHERE faa = 'DEN';
DELETE FROM airports WHERE faa = 'MVY';
