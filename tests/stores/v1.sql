SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE place.paceline_inbox (
    study integer NOT NULL,
    number bigint NOT NULL,
    body text NOT NULL
);
CREATE TABLE place.paceline_steps (
    study integer NOT NULL,
    number bigint NOT NULL,
    body text NOT NULL
);
CREATE TABLE place.paceline_store (
    version integer NOT NULL
);
CREATE TABLE place.paceline_studies (
    id integer NOT NULL,
    name text NOT NULL
);
CREATE SEQUENCE place.paceline_studies_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE place.paceline_studies_id_seq OWNED BY place.paceline_studies.id;
ALTER TABLE ONLY place.paceline_studies ALTER COLUMN id SET DEFAULT nextval('place.paceline_studies_id_seq'::regclass);
INSERT INTO place.paceline_inbox VALUES (2, 1, '{"type":"slots","by":2}');
INSERT INTO place.paceline_steps VALUES (1, 0, '{"number":0,"event":{"type":"opened","at":0.0,"spec":{"name":"whole","metric":"accuracy","mode":"max","epochs":4,"policy":{"name":"fifo"},"generator":{"name":"random","params":{"space":{"b0":{"uniform":[0,1]},"b1":{"uniform":[0,1]},"b2":{"uniform":[0,1]}}}},"allocator":{"name":"fixed"},"curves":{"name":"pfn"},"budget":{"trials":6},"saves":{}},"engine":{"source":"toy:epochs=4","policy":"fifo","generator":null,"allocator":"fixed","curves":"pfn","slots":2,"target":null,"over":1,"range":null,"deadline_s":null,"slot_seconds":null,"epochs":null,"trials":6,"seed":0,"order":"shuffled","share":false,"pack":1,"span":1,"speedup":"linear","interference":0.0,"setup_s":null,"save_s":0.0,"restore_s":0.0,"forecast_s":0.0,"save_every_s":null,"mean_life_s":null,"retries":3,"capacity":[]}},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 1, '{"number":1,"event":{"type":"capacitychanged","at":0.0,"slots":[0,1]},"decisions":[{"type":"open","why":"a slot is free","trial":0,"config":{"b0":0.925592651773,"b1":0.524479877728,"b2":0.943249262762},"until":4},{"type":"launch","why":"a slot is free","attempt":0,"trial":0,"start":0,"source":null,"goal":4,"save_at":[],"slots":[0],"width":1.0},{"type":"open","why":"a slot is free","trial":1,"config":{"b0":0.770210647532,"b1":0.272502415718,"b2":0.0261652281864},"until":4},{"type":"launch","why":"a slot is free","attempt":1,"trial":1,"start":0,"source":null,"goal":4,"save_at":[],"slots":[1],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (1, 6, '{"number":6,"event":{"type":"reported","at":0.1,"attempt":0,"epoch":1,"metrics":{"accuracy":0.0937622792639},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 7, '{"number":7,"event":{"type":"reported","at":0.1,"attempt":1,"epoch":1,"metrics":{"accuracy":0.0518937897478},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 8, '{"number":8,"event":{"type":"reported","at":0.2,"attempt":0,"epoch":2,"metrics":{"accuracy":0.0983242327041},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 9, '{"number":9,"event":{"type":"reported","at":0.2,"attempt":1,"epoch":2,"metrics":{"accuracy":0.0558302001822},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 10, '{"number":10,"event":{"type":"reported","at":0.30000000000000004,"attempt":0,"epoch":3,"metrics":{"accuracy":0.102134578545},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 11, '{"number":11,"event":{"type":"reported","at":0.30000000000000004,"attempt":1,"epoch":3,"metrics":{"accuracy":0.0556047475012},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 12, '{"number":12,"event":{"type":"reported","at":0.4,"attempt":0,"epoch":4,"metrics":{"accuracy":0.1062604512},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 13, '{"number":13,"event":{"type":"saved","at":0.4,"attempt":0,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 14, '{"number":14,"event":{"type":"ended","at":0.4,"attempt":0,"cause":"goal"},"decisions":[{"type":"open","why":"a slot is free","trial":2,"config":{"b0":0.930429003112,"b1":0.0177021532162,"b2":0.272993604221},"until":4},{"type":"launch","why":"a slot is free","attempt":2,"trial":2,"start":0,"source":null,"goal":4,"save_at":[],"slots":[0],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (1, 17, '{"number":17,"event":{"type":"reported","at":0.4,"attempt":1,"epoch":4,"metrics":{"accuracy":0.0587900694185},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 18, '{"number":18,"event":{"type":"saved","at":0.4,"attempt":1,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 19, '{"number":19,"event":{"type":"ended","at":0.4,"attempt":1,"cause":"goal"},"decisions":[{"type":"open","why":"a slot is free","trial":3,"config":{"b0":0.35238120797,"b1":0.0808236193618,"b2":0.92846309374},"until":4},{"type":"launch","why":"a slot is free","attempt":3,"trial":3,"start":0,"source":null,"goal":4,"save_at":[],"slots":[1],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (1, 22, '{"number":22,"event":{"type":"reported","at":0.5,"attempt":2,"epoch":1,"metrics":{"accuracy":0.00686315627661},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 23, '{"number":23,"event":{"type":"reported","at":0.5,"attempt":3,"epoch":1,"metrics":{"accuracy":0.0114982145617},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 24, '{"number":24,"event":{"type":"reported","at":0.6,"attempt":2,"epoch":2,"metrics":{"accuracy":0.0098486170167},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 25, '{"number":25,"event":{"type":"reported","at":0.6,"attempt":3,"epoch":2,"metrics":{"accuracy":0.012412273916},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 26, '{"number":26,"event":{"type":"reported","at":0.7,"attempt":2,"epoch":3,"metrics":{"accuracy":0.0145750231366},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 27, '{"number":27,"event":{"type":"reported","at":0.7,"attempt":3,"epoch":3,"metrics":{"accuracy":0.0105963408355},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 28, '{"number":28,"event":{"type":"reported","at":0.7999999999999999,"attempt":2,"epoch":4,"metrics":{"accuracy":0.022574531572},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 29, '{"number":29,"event":{"type":"saved","at":0.7999999999999999,"attempt":2,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 30, '{"number":30,"event":{"type":"ended","at":0.7999999999999999,"attempt":2,"cause":"goal"},"decisions":[{"type":"open","why":"a slot is free","trial":4,"config":{"b0":0.470608516219,"b1":0.689548096995,"b2":0.0172496185572},"until":4},{"type":"launch","why":"a slot is free","attempt":4,"trial":4,"start":0,"source":null,"goal":4,"save_at":[],"slots":[0],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (1, 33, '{"number":33,"event":{"type":"reported","at":0.7999999999999999,"attempt":3,"epoch":4,"metrics":{"accuracy":0.0144097555374},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 34, '{"number":34,"event":{"type":"saved","at":0.7999999999999999,"attempt":3,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 35, '{"number":35,"event":{"type":"ended","at":0.7999999999999999,"attempt":3,"cause":"goal"},"decisions":[{"type":"open","why":"a slot is free","trial":5,"config":{"b0":0.930234883291,"b1":0.390316187587,"b2":0.979323168952},"until":4},{"type":"launch","why":"a slot is free","attempt":5,"trial":5,"start":0,"source":null,"goal":4,"save_at":[],"slots":[1],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (1, 38, '{"number":38,"event":{"type":"reported","at":0.8999999999999999,"attempt":4,"epoch":1,"metrics":{"accuracy":0.121429773095},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 39, '{"number":39,"event":{"type":"reported","at":0.8999999999999999,"attempt":5,"epoch":1,"metrics":{"accuracy":0.0713396527696},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 40, '{"number":40,"event":{"type":"reported","at":0.9999999999999999,"attempt":4,"epoch":2,"metrics":{"accuracy":0.121078039563},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 41, '{"number":41,"event":{"type":"reported","at":0.9999999999999999,"attempt":5,"epoch":2,"metrics":{"accuracy":0.0765537605117},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 42, '{"number":42,"event":{"type":"reported","at":1.0999999999999999,"attempt":4,"epoch":3,"metrics":{"accuracy":0.123772287923},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 43, '{"number":43,"event":{"type":"reported","at":1.0999999999999999,"attempt":5,"epoch":3,"metrics":{"accuracy":0.0800076501869},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 44, '{"number":44,"event":{"type":"reported","at":1.2,"attempt":4,"epoch":4,"metrics":{"accuracy":0.120910692903},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 45, '{"number":45,"event":{"type":"saved","at":1.2,"attempt":4,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 46, '{"number":46,"event":{"type":"ended","at":1.2,"attempt":4,"cause":"goal"},"decisions":[{"type":"close","why":"all 6 trials of the budget are open"}]}');
INSERT INTO place.paceline_steps VALUES (1, 48, '{"number":48,"event":{"type":"reported","at":1.2,"attempt":5,"epoch":4,"metrics":{"accuracy":0.0853417516631},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 49, '{"number":49,"event":{"type":"saved","at":1.2,"attempt":5,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (1, 50, '{"number":50,"event":{"type":"ended","at":1.2,"attempt":5,"cause":"goal"},"decisions":[{"type":"end","why":"nothing is left to run: 6 trials were opened","cause":"quiet"}]}');
INSERT INTO place.paceline_steps VALUES (2, 0, '{"number":0,"event":{"type":"opened","at":0.0,"spec":{"name":"cut short","metric":"accuracy","mode":"max","epochs":4,"policy":{"name":"fifo"},"generator":{"name":"random","params":{"space":{"b0":{"uniform":[0,1]},"b1":{"uniform":[0,1]},"b2":{"uniform":[0,1]}}}},"allocator":{"name":"fixed"},"curves":{"name":"pfn"},"budget":{"trials":6},"saves":{}},"engine":{"source":"toy:epochs=4","policy":"fifo","generator":null,"allocator":"fixed","curves":"pfn","slots":2,"target":null,"over":1,"range":null,"deadline_s":null,"slot_seconds":null,"epochs":null,"trials":6,"seed":0,"order":"shuffled","share":false,"pack":1,"span":1,"speedup":"linear","interference":0.0,"setup_s":null,"save_s":0.0,"restore_s":0.0,"forecast_s":0.0,"save_every_s":null,"mean_life_s":null,"retries":3,"capacity":[]}},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 1, '{"number":1,"event":{"type":"capacitychanged","at":0.0,"slots":[0,1]},"decisions":[{"type":"open","why":"a slot is free","trial":0,"config":{"b0":0.925592651773,"b1":0.524479877728,"b2":0.943249262762},"until":4},{"type":"launch","why":"a slot is free","attempt":0,"trial":0,"start":0,"source":null,"goal":4,"save_at":[],"slots":[0],"width":1.0},{"type":"open","why":"a slot is free","trial":1,"config":{"b0":0.770210647532,"b1":0.272502415718,"b2":0.0261652281864},"until":4},{"type":"launch","why":"a slot is free","attempt":1,"trial":1,"start":0,"source":null,"goal":4,"save_at":[],"slots":[1],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (2, 6, '{"number":6,"event":{"type":"reported","at":0.1,"attempt":0,"epoch":1,"metrics":{"accuracy":0.0937622792639},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 7, '{"number":7,"event":{"type":"reported","at":0.1,"attempt":1,"epoch":1,"metrics":{"accuracy":0.0518937897478},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 8, '{"number":8,"event":{"type":"reported","at":0.2,"attempt":0,"epoch":2,"metrics":{"accuracy":0.0983242327041},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 9, '{"number":9,"event":{"type":"reported","at":0.2,"attempt":1,"epoch":2,"metrics":{"accuracy":0.0558302001822},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 10, '{"number":10,"event":{"type":"reported","at":0.30000000000000004,"attempt":0,"epoch":3,"metrics":{"accuracy":0.102134578545},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 11, '{"number":11,"event":{"type":"reported","at":0.30000000000000004,"attempt":1,"epoch":3,"metrics":{"accuracy":0.0556047475012},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 12, '{"number":12,"event":{"type":"reported","at":0.4,"attempt":0,"epoch":4,"metrics":{"accuracy":0.1062604512},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 13, '{"number":13,"event":{"type":"saved","at":0.4,"attempt":0,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 14, '{"number":14,"event":{"type":"ended","at":0.4,"attempt":0,"cause":"goal"},"decisions":[{"type":"open","why":"a slot is free","trial":2,"config":{"b0":0.930429003112,"b1":0.0177021532162,"b2":0.272993604221},"until":4},{"type":"launch","why":"a slot is free","attempt":2,"trial":2,"start":0,"source":null,"goal":4,"save_at":[],"slots":[0],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (2, 17, '{"number":17,"event":{"type":"reported","at":0.4,"attempt":1,"epoch":4,"metrics":{"accuracy":0.0587900694185},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 18, '{"number":18,"event":{"type":"saved","at":0.4,"attempt":1,"epoch":4,"seconds":0.0},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 19, '{"number":19,"event":{"type":"ended","at":0.4,"attempt":1,"cause":"goal"},"decisions":[{"type":"open","why":"a slot is free","trial":3,"config":{"b0":0.35238120797,"b1":0.0808236193618,"b2":0.92846309374},"until":4},{"type":"launch","why":"a slot is free","attempt":3,"trial":3,"start":0,"source":null,"goal":4,"save_at":[],"slots":[1],"width":1.0}]}');
INSERT INTO place.paceline_steps VALUES (2, 22, '{"number":22,"event":{"type":"reported","at":0.5,"attempt":2,"epoch":1,"metrics":{"accuracy":0.00686315627661},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 23, '{"number":23,"event":{"type":"reported","at":0.5,"attempt":3,"epoch":1,"metrics":{"accuracy":0.0114982145617},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 24, '{"number":24,"event":{"type":"reported","at":0.6,"attempt":2,"epoch":2,"metrics":{"accuracy":0.0098486170167},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 25, '{"number":25,"event":{"type":"reported","at":0.6,"attempt":3,"epoch":2,"metrics":{"accuracy":0.012412273916},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_steps VALUES (2, 26, '{"number":26,"event":{"type":"reported","at":0.7,"attempt":2,"epoch":3,"metrics":{"accuracy":0.0145750231366},"seconds":0.1},"decisions":[]}');
INSERT INTO place.paceline_store VALUES (1);
INSERT INTO place.paceline_studies VALUES (1, 'whole');
INSERT INTO place.paceline_studies VALUES (2, 'cut short');
SELECT pg_catalog.setval('place.paceline_studies_id_seq', 2, true);
ALTER TABLE ONLY place.paceline_inbox
    ADD CONSTRAINT paceline_inbox_pkey PRIMARY KEY (study, number);
ALTER TABLE ONLY place.paceline_steps
    ADD CONSTRAINT paceline_steps_pkey PRIMARY KEY (study, number);
ALTER TABLE ONLY place.paceline_studies
    ADD CONSTRAINT paceline_studies_name_key UNIQUE (name);
ALTER TABLE ONLY place.paceline_studies
    ADD CONSTRAINT paceline_studies_pkey PRIMARY KEY (id);
ALTER TABLE ONLY place.paceline_inbox
    ADD CONSTRAINT paceline_inbox_study_fkey FOREIGN KEY (study) REFERENCES place.paceline_studies(id);
ALTER TABLE ONLY place.paceline_steps
    ADD CONSTRAINT paceline_steps_study_fkey FOREIGN KEY (study) REFERENCES place.paceline_studies(id);
